"""Stand-ins for the images that compose.yaml and the Dockerfile pin, for machines that can pull none.

Invariant: a stand-in has the pinned name, and the variables, ports, volumes and programs of the image that the files
rely on, so that they are run unchanged. They are made for a private engine only, never for one that others use.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deploy.engine import Engine, TrialError, need, run
from stack.postgres import postgres_binaries
from stack.s3 import weed_binary

#: Repository name -> the folder of its recipe.
RECIPES = {"python": "python", "postgres": "postgres", "rabbitmq": "rabbitmq", "chrislusf/seaweedfs": "seaweedfs"}

#: What the image installs, which its stand-in base must hold.
LOCKS = ("deploy/requirements-build.lock", "requirements-core.lock")

_RECIPES_FOLDER = Path(__file__).parent / "stand-ins"
_PYTHON_OF_THE_IMAGE = "3.11"
_IMAGE = re.compile(r"^(?:FROM|\s+image:) +(?P<name>[a-z/]+):(?P<tag>\S+)", re.MULTILINE)
_BASE = re.compile(r"^FROM stand-in-base:(?P<suite>\w+)", re.MULTILINE)
_LABEL = "spillway.recipe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """Where stand-ins are made, and of what."""

    engine: Engine
    root: Path
    cache: Path
    say: Callable[[str], None]


def pinned_images(root: Path) -> dict[str, str]:
    """Return the name with tag of each image that our files take from elsewhere, by repository name."""
    text = "\n".join((root / name).read_text(encoding="utf-8") for name in ("Dockerfile", "compose.yaml"))
    found = {match["name"]: f"{match['name']}:{match['tag']}" for match in _IMAGE.finditer(text)}
    return {name: image for name, image in found.items() if name != "spillway"}


def build_stand_ins(shop: Workshop) -> None:
    """Make those that are not there yet, or are made of something else than now.

    Raises:
        TrialError: one could not be made.
        UnfitError: the machine lacks what they are made with.
    """
    for name, image in pinned_images(shop.root).items():
        recipe = _RECIPES_FOLDER / RECIPES[name]
        digest = _digest(recipe, [shop.root / lock for lock in LOCKS if name == "python"])
        if _label(shop.engine, image) == digest:
            continue
        suite = _BASE.search((recipe / "Dockerfile").read_text(encoding="utf-8"))
        if suite is None:
            raise TrialError(f"{recipe}/Dockerfile is not made from a stand-in base")
        _ensure_base(shop, suite["suite"])
        shop.say(f"making a stand-in for {image}")
        with tempfile.TemporaryDirectory(dir=shop.cache) as folder:
            context = Path(folder) / "context"
            shutil.copytree(recipe, context)
            _add_ingredients(shop, RECIPES[name], context)
            label = f"--label={_LABEL}={digest}"
            shop.engine.docker("build", "--quiet", "--network=host", f"--tag={image}", label, str(context))


def _add_ingredients(shop: Workshop, recipe: str, context: Path) -> None:
    if recipe == "postgres":
        package = postgres_binaries().parents[1]
        for folder in (package, package.with_suffix(".libs")):
            if folder.exists():
                shutil.copytree(folder, context / "packages" / folder.name, symlinks=True)
    elif recipe == "seaweedfs":
        shutil.copy(weed_binary(shop.engine.environment["PATH"]), context / "weed")
    elif recipe == "python":
        _download_wheels(shop, context / "wheels")


def _download_wheels(shop: Workshop, folder: Path) -> None:
    # By this machine's pip and its configuration, so that nothing of it gets into an image or a file.
    options = ["--no-deps", "--require-hashes", f"--python-version={_PYTHON_OF_THE_IMAGE}", f"--dest={folder}"]
    for lock in LOCKS:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", *options, f"--requirement={shop.root / lock}"]
        run(pip, shop.engine.environment)


def _ensure_base(shop: Workshop, suite: str) -> None:
    image = f"stand-in-base:{suite}"
    if _label(shop.engine, image) == suite:
        return
    need(shop.engine.environment, "debootstrap", "tar", why="to make base images")
    shop.say(f"making a base system of Debian {suite}")
    with tempfile.TemporaryDirectory(dir=shop.cache) as folder:
        system = Path(folder) / suite
        run(["debootstrap", "--variant=minbase", suite, str(system), *_mirror(shop)], shop.engine.environment)
        _import(shop.engine, system, image=image, label=f"LABEL {_LABEL}={suite}")


def _mirror(shop: Workshop) -> list[str]:
    """Return the mirror that this machine's own packages come from; without one debootstrap knows the usual."""
    question = ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages", "Origin: Debian"]
    try:
        return run(question, shop.engine.environment).splitlines()[:1]
    except (TrialError, OSError):
        return []


def _import(engine: Engine, system: Path, *, image: str, label: str) -> None:
    pack, load = ["tar", "-C", str(system), "-c", "."], ["docker", "import", "--change", label, "-", image]
    with subprocess.Popen(pack, stdout=subprocess.PIPE) as tar:
        done = subprocess.run(load, env=dict(engine.environment), stdin=tar.stdout, capture_output=True, check=False)
    if done.returncode != 0 or tar.returncode != 0:
        raise TrialError(f"the base system could not be imported: {done.stderr.decode(errors='replace')}")


def _label(engine: Engine, image: str) -> str:
    try:
        return engine.docker("image", "inspect", "--format", f'{{{{index .Config.Labels "{_LABEL}"}}}}', image)
    except TrialError:
        return ""


def _digest(recipe: Path, locks: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in [*locks, *sorted(recipe.iterdir())]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
