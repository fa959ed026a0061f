"""A Hub on this machine: what the Python client of the Hugging Face Hub says to it, over real HTTP.

The client is the installed one, as it is. It reads the Hub's address when it is imported, so it runs in a process of
its own:

    with LocalHub() as hub:
        result = subprocess.run([sys.executable, "-c", SCRIPT], env=environment(hub, tmp_path), ...)
        assert hub.repositories["user/name"].files()["config.json"] == ...
        assert not hub.repositories["user/name"].private
        hub.break_request("PUT", "/objects/", nth=3, status=400)  # the third upload from now on is lost half-way

The Hub has one user, `user`, whose token is `hub.token`, and models alone. Large files go by Git LFS's basic transfer
(https://github.com/git-lfs/git-lfs/blob/main/docs/api/basic-transfers.md) and come from a store of their own.
"""

import base64
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from fnmatch import fnmatch
from functools import cached_property, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

LARGE = 10 * 2**20
LARGE_FILES = ("*.bin", "*.pt", "*.pth", "*.safetensors", "*tfevents*")
ATTRIBUTES = "".join(f"{pattern} filter=lfs diff=lfs merge=lfs -text\n" for pattern in LARGE_FILES).encode()
LICENSES = ("apache-2.0", "cc-by-4.0", "cc0-1.0", "mit", "other")
FOREIGN = re.compile(r"(HF_|HUGGINGFACE_|TRANSFORMERS_).*|PYTHONPATH|.*_proxy", re.IGNORECASE)


def environment(hub: "LocalHub", home: Path, token: str | None = "") -> dict[str, str]:
    """The environment of a process whose client knows this Hub, this token and no other cache than that in `home`.

    Args:
        token: the Hub's own if not given; `None` for none.
    """
    told = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(home / "huggingface"),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1",
        "OMP_NUM_THREADS": "1",
    }
    if token is not None:
        told["HF_TOKEN"] = token or hub.token
    return {name: value for name, value in os.environ.items() if not FOREIGN.fullmatch(name)} | told


class RefusalError(Exception):
    """An answer that is an error, with the code by which the client tells one from another."""

    def __init__(self, status: int, message: str, code: str = "", **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {}) | headers


@dataclass(frozen=True)
class Blob:
    """A file's bytes. Of a large one git holds a pointer alone."""

    data: bytes = field(repr=False)
    large: bool

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def pointer(self) -> bytes:
        head = "version https://git-lfs.github.com/spec/v1"
        return f"{head}\noid sha256:{self.sha256}\nsize {len(self.data)}\n".encode()

    @cached_property
    def git_oid(self) -> str:
        stored = self.pointer if self.large else self.data
        return hashlib.sha1(b"blob %d\0" % len(stored) + stored).hexdigest()

    @property
    def oid(self) -> str:
        """By this the client tells whether a file has changed."""
        return self.sha256 if self.large else self.git_oid

    def entry(self, path: str) -> dict[str, Any]:
        entry = {"type": "file", "path": path, "size": len(self.data), "oid": self.git_oid}
        if self.large:
            entry["lfs"] = {"oid": self.sha256, "size": len(self.data), "pointerSize": len(self.pointer)}
        return entry


@dataclass(frozen=True)
class Commit:
    """All files of a repository at one time, named by what they hold and by what was before."""

    parent: str
    message: str
    blobs: Mapping[str, Blob]

    @cached_property
    def oid(self) -> str:
        files = sorted((path, blob.git_oid) for path, blob in self.blobs.items())
        return hashlib.sha1(json.dumps([self.parent, self.message, files]).encode()).hexdigest()

    def tree(self, folder: str, recursive: bool) -> list[dict[str, Any]]:
        """The entries of a folder, "" for the top.

        Raises:
            RefusalError: there is no such folder.
        """
        start = f"{folder}/" if folder else ""
        inside = {path: blob for path, blob in sorted(self.blobs.items()) if path.startswith(start)}
        if folder and not inside:
            raise RefusalError(404, f"{folder} does not exist on {self.oid}", "EntryNotFound")
        entries = {}
        for path, blob in inside.items():
            names = path[len(start) :].split("/")
            for depth in range(1, len(names) if recursive else min(len(names), 2)):
                above = start + "/".join(names[:depth])
                entries[above] = {"type": "directory", "path": above, "size": 0, "oid": self.oid}
            if recursive or len(names) == 1:
                entries[path] = blob.entry(path)
        return list(entries.values())


class Repository:
    """A model's commits, the oldest first, and its branches, each the hash of a commit."""

    def __init__(self, private: bool = False) -> None:
        self.private = private
        self.commits: list[Commit] = []
        self.branches: dict[str, str] = {}
        self.commit("main", "initial commit", {".gitattributes": Blob(ATTRIBUTES, large=False)})

    def commit(self, branch: str, message: str, blobs: Mapping[str, Blob]) -> Commit:
        """A commit on a branch, with all of the files that are to be there."""
        commit = Commit(self.branches.get(branch, ""), message, dict(blobs))
        self.commits.append(commit)
        self.branches[branch] = commit.oid
        return commit

    def at(self, revision: str) -> Commit:
        """The commit of a branch or a hash.

        Raises:
            RefusalError: there is none.
        """
        oid = self.branches.get(revision, revision)
        found = [commit for commit in self.commits if commit.oid == oid]
        if not found:
            raise RefusalError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return found[0]

    def files(self, revision: str = "main") -> dict[str, bytes]:
        return {path: blob.data for path, blob in self.at(revision).blobs.items()}


class Request(NamedTuple):
    """A request as it came, and the status of its answer; 0 where the connection was closed instead."""

    method: str
    path: str
    headers: Message
    status: int


@dataclass
class Break:
    """A request that is to break: the nth of those with this method and this part of a path."""

    method: str
    part: str
    nth: int
    status: int | None

    def comes(self, method: str, path: str) -> bool:
        """Whether it is this one; counts those that fit."""
        self.nth -= method == self.method and self.part in path
        return self.nth == 0


class LocalHub:
    """The server, between `with` and its end on a free port of this machine.

    Attributes:
        url: where it listens.
        user, token: the one who may write, and may read what is private.
        repositories: by name, `user/name`.
        objects: the large files that were uploaded, committed or not, by SHA-256.
        requests: all requests so far.
    """

    user = "user"
    token = "hf_of_the_user"

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.requests: list[Request] = []
        self.lock = threading.Lock()
        self._breaks: list[Break] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Hub, self))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> "LocalHub":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def break_request(self, method: str, part: str, nth: int = 1, status: int | None = None) -> None:
        """Break the nth request from now on with this method and this part of a path; the next goes well again.

        Half of what it sends, or of what it asks for, comes through, and the connection is closed; or nothing does and
        a `status` is the answer. The client itself repeats an upload after a closed connection and after 5xx. It does
        not after 400, which stores of files answer where one broke off, and never repeats a commit.
        """
        with self.lock:
            self._breaks.append(Break(method, part, nth, status))

    def breaking(self, method: str, path: str) -> Break | None:
        """The break that is due with this request."""
        with self.lock:
            due = [one for one in self._breaks if one.comes(method, path)]
            self._breaks = [one for one in self._breaks if one.nth > 0]
            return due[0] if due else None

    def signature(self, oid: str) -> str:
        """What the address of a large file has in place of a token."""
        return hashlib.sha256(f"{self.token} {oid}".encode()).hexdigest()

    def address(self, oid: str) -> str:
        """On another host than the Hub's: the client does not take its token there."""
        return f"{self.url.replace('127.0.0.1', 'localhost')}/objects/{oid}?signature={self.signature(oid)}"


class Connection(BaseHTTPRequestHandler):
    """What is HTTP in the requests of one connection and in their answers."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init__(self, hub: LocalHub, *arguments: Any) -> None:
        self.hub = hub
        self.body = b""
        self.broken: Break | None = None
        super().__init__(*arguments)

    def log_message(self, *message: Any) -> None:
        """Nothing on stderr."""

    def answer(self) -> None:
        raise NotImplementedError

    def handle_request(self) -> None:
        self.broken = self.hub.breaking(self.command, self.path)
        size = int(self.headers.get("Content-Length", 0))
        closes = self.broken is not None and self.broken.status is None
        self.body = self.rfile.read(size // 2 if closes else size)
        if len(self.body) < size:
            self.hub.requests.append(Request(self.command, self.path, self.headers, 0))
            self.close_connection = True
        elif self.broken and self.broken.status:
            self.send(self.broken.status, b"")
        else:
            self.answer()

    do_GET = do_HEAD = do_POST = do_PUT = handle_request  # noqa: N815 (names that the base class calls)

    def send(self, status: int, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.hub.requests.append(Request(self.command, self.path, self.headers, status))
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(data))} | dict(headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.broken and self.broken.status is None:
            self.close_connection = True
            data = data[: len(data) // 2]
        self.wfile.write(data)

    def send_json(self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        self.send(status, json.dumps(value).encode(), {"Content-Type": "application/json"} | dict(headers or {}))

    def send_range(self, data: bytes, headers: Mapping[str, str]) -> None:
        """All of the bytes, or the part that the request names: bytes=FIRST-LAST, bytes=FIRST- or bytes=-COUNT."""
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        headers = {"Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"} | dict(headers)
        if not wanted:
            self.send(200, data, headers)
            return
        first, last = wanted.groups()
        start = int(first) if first else max(len(data) - int(last), 0)
        end = min(int(last), len(data) - 1) if first and last else len(data) - 1
        if start > end:
            raise RefusalError(416, "Range Not Satisfiable", **{"Content-Range": f"bytes */{len(data)}"})
        self.send(206, data[start : end + 1], headers | {"Content-Range": f"bytes {start}-{end}/{len(data)}"})


class Hub(Connection):
    """What the Hub answers."""

    def answer(self) -> None:
        try:
            with self.hub.lock:
                self.route(urlsplit(self.path).path)
        except RefusalError as refusal:
            self.send_json({"error": str(refusal)}, refusal.status, refusal.headers)

    def route(self, path: str) -> None:
        for methods, pattern, answer in ROUTES:
            found = re.fullmatch(pattern, path)
            if found and self.command in methods:
                answer(self, **{name: unquote(part) for name, part in found.groupdict(default="").items()})
                return
        raise RefusalError(404, f"Cannot {self.command} {path}")

    # Who may do what

    def signed_in(self) -> bool:
        authorization = self.headers.get("Authorization")
        if authorization not in (None, f"Bearer {self.hub.token}"):
            raise RefusalError(401, "Invalid credentials in Authorization header")
        return authorization is not None

    def readable(self, name: str) -> Repository:
        repository, signed_in = self.hub.repositories.get(name), self.signed_in()
        if repository is None or (repository.private and not signed_in):
            # A stranger is not told whether there is one.
            status, message = (404, "Repository not found") if signed_in else (401, "Invalid username or password.")
            raise RefusalError(status, message, "RepoNotFound")
        return repository

    def check_sign_in(self) -> None:
        if not self.signed_in():
            raise RefusalError(401, "Invalid username or password.")

    def check_rights(self, namespace: str) -> None:
        self.check_sign_in()
        if namespace != self.hub.user:
            raise RefusalError(403, f'You don\'t have the rights to create a model under the namespace "{namespace}"')

    def writable(self, name: str) -> Repository:
        repository = self.readable(name)
        self.check_rights(name.split("/")[0])
        return repository

    # What there is

    def whoami(self) -> None:
        self.check_sign_in()
        access = {"accessToken": {"displayName": "local", "role": "write"}}
        self.send_json({"type": "user", "name": self.hub.user, "fullname": self.hub.user, "orgs": [], "auth": access})

    def info(self, name: str, revision: str = "main") -> None:
        repository = self.readable(name)
        commit = repository.at(revision)
        siblings = [{"rfilename": path} for path in sorted(commit.blobs)]
        described = {"id": name, "modelId": name, "private": repository.private, "sha": commit.oid}
        self.send_json(described | {"siblings": siblings, "tags": [], "downloads": 0, "likes": 0})

    def refs(self, name: str) -> None:
        branches = [
            {"name": branch, "ref": f"refs/heads/{branch}", "targetCommit": oid}
            for branch, oid in self.readable(name).branches.items()
        ]
        self.send_json({"branches": branches, "converts": [], "tags": []})

    def tree(self, name: str, revision: str, folder: str) -> None:
        recursive = parse_qs(urlsplit(self.path).query).get("recursive", [""])[0].lower() == "true"
        self.send_json(self.readable(name).at(revision).tree(folder, recursive))

    def paths_info(self, name: str, revision: str) -> None:
        wanted = parse_qs(self.body.decode())["paths"]
        entries = self.readable(name).at(revision).tree("", recursive=True)
        self.send_json([entry for entry in entries if entry["path"] in wanted])

    def resolve(self, name: str, revision: str, path: str) -> None:
        commit = self.readable(name).at(revision)
        headers = {"X-Repo-Commit": commit.oid}
        if path not in commit.blobs:
            raise RefusalError(404, "Entry not found", "EntryNotFound", **headers)
        blob = commit.blobs[path]
        if blob.large:
            linked = {"X-Linked-Etag": f'"{blob.oid}"', "X-Linked-Size": str(len(blob.data))}
            self.send(302, b"", headers | linked | {"Location": self.hub.address(blob.oid)})
        else:
            self.send_range(blob.data, headers | {"ETag": f'"{blob.oid}"'})

    # What comes

    def create(self) -> None:
        wanted = json.loads(self.body)
        namespace = wanted.get("organization") or self.hub.user
        self.check_rights(namespace)
        name = f"{namespace}/{wanted['name']}"
        created = {"url": f"{self.hub.url}/{name}", "name": name}
        if name in self.hub.repositories:
            self.send_json({"error": "You already created this model repo"} | created, 409)
            return
        private = wanted.get("private") or wanted.get("visibility") == "private"
        self.hub.repositories[name] = Repository(bool(private))
        self.send_json(created)

    def create_branch(self, name: str, branch: str) -> None:
        repository = self.writable(name)
        if branch in repository.branches:
            raise RefusalError(409, f"Reference already exists: {branch}")
        start = json.loads(self.body or b"{}").get("startingPoint", "main")
        repository.branches[branch] = repository.at(start).oid
        self.send_json({})

    def check_card(self) -> None:
        metadata = re.match(r"---\n(.*?\n)---\n", json.loads(self.body)["content"], re.DOTALL)
        license_ = re.search(r"^license: *(.*)$", metadata[1], re.MULTILINE) if metadata else None
        if license_ and license_[1] not in LICENSES:
            self.send_json({"errors": [{"message": f'"license" must be one of {LICENSES}'}], "warnings": []}, 400)
            return
        warnings = [] if metadata else [{"message": "empty or missing yaml metadata in repo card"}]
        self.send_json({"errors": [], "warnings": warnings})

    def preupload(self, name: str, revision: str) -> None:
        known = self.writable(name).at(revision).blobs
        answers = []
        for file in json.loads(self.body)["files"]:
            path = file["path"]
            binary = b"\0" in base64.b64decode(file["sample"])
            large = binary or file["size"] > LARGE or any(fnmatch(Path(path).name, pattern) for pattern in LARGE_FILES)
            answer = {"path": path, "uploadMode": "lfs" if large else "regular", "shouldIgnore": False}
            answers.append(answer | ({"oid": known[path].oid} if path in known else {}))
        self.send_json({"files": answers})

    def batch(self, name: str) -> None:
        self.writable(name)
        answers = []
        for wanted in json.loads(self.body)["objects"]:
            oid = wanted["oid"]
            verify = {"href": f"{self.hub.url}/{name}.git/info/lfs/objects/verify"}
            actions = {"actions": {"upload": {"href": self.hub.address(oid)}, "verify": verify}}
            answers.append(wanted | ({} if oid in self.hub.objects else actions))
        self.send_json({"transfer": "basic", "objects": answers})

    def object(self, oid: str) -> None:
        if parse_qs(urlsplit(self.path).query).get("signature") != [self.hub.signature(oid)]:
            raise RefusalError(403, "the signature does not match")
        if self.command == "PUT":
            if hashlib.sha256(self.body).hexdigest() != oid:
                raise RefusalError(400, "the content does not have this SHA-256")
            self.hub.objects[oid] = self.body
            self.send(200, b"")
        elif oid in self.hub.objects:
            self.send_range(self.hub.objects[oid], {"ETag": f'"{oid}"'})
        else:
            raise RefusalError(404, "no such object")

    def verify(self, name: str) -> None:
        self.writable(name)
        wanted = json.loads(self.body)
        self.uploaded(wanted["oid"], wanted["size"])
        self.send_json({})

    def uploaded(self, oid: str, size: int) -> bytes:
        data = self.hub.objects.get(oid)
        if data is None or len(data) != size:
            raise RefusalError(400, f"the large file {oid} of {size} bytes was not uploaded")
        return data

    def commit(self, name: str, branch: str) -> None:
        """All of the operations, or none."""
        repository = self.writable(name)
        head = repository.at(repository.branches.get(branch, "no branch"))
        blobs = dict(head.blobs)
        message = ""
        for line in self.body.splitlines():
            key, value = (operation := json.loads(line))["key"], operation["value"]
            if key == "header":
                message = value["summary"]
                if value.get("parentCommit", head.oid) != head.oid:
                    raise RefusalError(412, "A commit has happened since. Please refresh and try again.")
                continue
            path = value["path"]
            if key == "file":
                blobs[path] = Blob(base64.b64decode(value["content"]), large=False)
            elif key == "lfsFile":
                blobs[path] = Blob(self.uploaded(value["oid"], value["size"]), large=True)
            else:
                gone = [other for other in blobs if other == path or other.startswith(path.rstrip("/") + "/")]
                if not gone:
                    raise RefusalError(404, "A file with this name doesn't exist", "EntryNotFound")
                for other in gone:
                    del blobs[other]
        oid = repository.commit(branch, message, blobs).oid
        self.send_json({"commitOid": oid, "commitUrl": f"{self.hub.url}/{name}/commit/{oid}", "success": True})


MODEL = "/api/models/(?P<name>[^/]+/[^/]+)"
READ = ("GET", "HEAD")
ROUTES: tuple[tuple[tuple[str, ...], str, Callable[..., None]], ...] = (
    (READ, "/api/whoami-v2", Hub.whoami),
    (READ, MODEL, Hub.info),
    (READ, f"{MODEL}/revision/(?P<revision>[^/]+)", Hub.info),
    (READ, f"{MODEL}/refs", Hub.refs),
    (READ, f"{MODEL}/tree/(?P<revision>[^/]+)(/(?P<folder>.+))?", Hub.tree),
    (("POST",), f"{MODEL}/paths-info/(?P<revision>[^/]+)", Hub.paths_info),
    (READ, "/(?P<name>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)", Hub.resolve),
    (("POST",), "/api/repos/create", Hub.create),
    (("POST",), f"{MODEL}/branch/(?P<branch>[^/]+)", Hub.create_branch),
    (("POST",), "/api/validate-yaml", Hub.check_card),
    (("POST",), f"{MODEL}/preupload/(?P<revision>[^/]+)", Hub.preupload),
    (("POST",), r"/(?P<name>[^/]+/[^/]+)\.git/info/lfs/objects/batch", Hub.batch),
    (("POST",), r"/(?P<name>[^/]+/[^/]+)\.git/info/lfs/objects/verify", Hub.verify),
    ((*READ, "PUT"), "/objects/(?P<oid>[0-9a-f]{64})", Hub.object),
    (("POST",), f"{MODEL}/commit/(?P<branch>[^/]+)", Hub.commit),
)
