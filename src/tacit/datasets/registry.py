"""The standard data sets that can be loaded by name, from scikit-learn, local files or a download."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tacit.datasets.arrays import IDX_FILES, find_idx, load_idx, load_npz
from tacit.datasets.bundled import BUNDLED, load_bundled
from tacit.datasets.cifar import read_batches, read_jpeg_npz
from tacit.datasets.dataset import Dataset
from tacit.datasets.download import RemoteFile, search_folders, user_cache
from tacit.datasets.download import download as fetch
from tacit.datasets.text import names_dataset
from tacit.errors import InvalidInput, check_in

_DIGITS = tuple(str(digit) for digit in range(10))
_FASHION = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR100_TEXT = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard
lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear
pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal
shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank
telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
_CIFAR100 = tuple(_CIFAR100_TEXT.split())

_NAMES = "names"
_MNIST_URL = "https://storage.googleapis.com/cvdf-datasets/mnist/"
_FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_CIFAR_URL = "https://www.cs.toronto.edu/~kriz/"


@dataclass(frozen=True)
class _ImageSet:
    """An image set in files: the function that finds it in a folder, and its URLs.

    ``find`` gets a folder, and whether the user named that folder for this set.
    """

    find: Callable[[Path, bool], Dataset | None]
    remote: tuple[RemoteFile, ...]
    subfolder: str  # in the user's cache; "" if the file names are unique to the set
    files: str  # the names of the files, for the error


def load(name: str, *, folder: Path | None = None, download: bool = False) -> Dataset:
    """Load a data set by name; see :func:`names`.

    ``digits``, ``breast-cancer``, ``wine``, ``iris`` and ``diabetes`` come with scikit-learn.  The image sets
    ``mnist``, ``fashion-mnist``, ``cifar10`` and ``cifar100`` are searched for in ``folder``, then in the
    folder that the environment variable TACIT_DATA names, then in the user's cache. ``download=True`` allows
    downloading them to the cache, with a checksum. Pixels are divided by 255, as a statistic of the data
    would leak. ``names``, a list of first names as text, is searched for in the same folders.

    Inputs of image sets are (n, channels, height, width) in [0, 1]; those of tables are (n, columns) in
    [-1, 1].

    Raises:
        InvalidInput: if the name is unknown, or the files are missing or damaged.

    >>> data = load("digits")
    >>> data.input_shape, len(data.classes), data.unit
    ((1, 8, 8), 10, 'image')
    """
    check_in("name", name, names())
    if name in BUNDLED:
        return load_bundled(name)
    if name == _NAMES:
        return names_dataset(folder=folder)
    image_set = _IMAGE_SETS[name]
    folders = search_folders(folder)
    for place in folders:
        by_user = folder is not None and place == folders[0]
        if (dataset := image_set.find(place, by_user)) is not None:
            return dataset
    if not download:
        places = ", ".join(str(place) for place in folders) or "no folder"
        raise InvalidInput(
            f"data set {name!r} was not found in {places}. Put {image_set.files} in a folder and name it "
            "with folder=... or the environment variable TACIT_DATA, or allow fetching it from "
            f"{image_set.remote[0].url.rsplit('/', 1)[0]} with download=True."
        )
    cache = user_cache()
    for remote in image_set.remote:
        fetch(remote, cache / image_set.subfolder)
    fetched = image_set.find(cache, False)
    assert fetched is not None  # all its files were just put there
    return fetched


def names() -> tuple[str, ...]:
    """Return the names that :func:`load` knows.

    >>> names()[:2]
    ('digits', 'breast-cancer')
    """
    return (*BUNDLED, _NAMES, *_IMAGE_SETS)


_MNIST = "MNIST, LeCun, Cortes and Burges 1998, pixels / 255; the official split"
_FASHION_MNIST = "Fashion-MNIST, Xiao et al. 2017 (1708.07747), pixels / 255; the official split"


def _find_idx_set(
    folder: Path, by_user: bool, *, name: str, subfolder: str, classes: tuple[str, ...], source: str
) -> Dataset | None:
    """Load MNIST or Fashion-MNIST from ``folder``; return None if its files are not there.

    They are one npz file, or four IDX files in a subfolder with the set's name or in torchvision's subfolder.
    Both sets use the same IDX file names, so IDX files directly in ``folder`` count only if the user named
    that folder.
    """
    npz = folder / f"{name.replace('-', '_')}.npz"
    if npz.is_file():
        return load_npz(npz, name=name, classes=classes, source=source)
    for place in ("", name, subfolder) if by_user else (name, subfolder):
        if all(find_idx(folder / place, file) is not None for file in IDX_FILES):
            return load_idx(folder / place, name=name, classes=classes, source=source)
    return None


def _find_cifar(
    folder: Path, _by_user: bool, *, name: str, classes: tuple[str, ...], about: str
) -> Dataset | None:
    pairs, lossy = read_batches(folder, fine_labels=name == "cifar100"), ""
    if pairs is None and name == "cifar10" and (folder / "cifar10_jpeg.npz").is_file():
        pairs, lossy = read_jpeg_npz(folder / "cifar10_jpeg.npz"), "re-encoded as JPEG (lossy), "
    if pairs is None:
        return None
    source = f"{about}, {lossy}pixels / 255; the official split"
    return Dataset(name, *pairs, classes=classes, source=source, unit="image")


def _idx_set(
    name: str, subfolder: str, classes: tuple[str, ...], source: str, base: str, checksums: tuple[str, ...]
) -> _ImageSet:
    return _ImageSet(
        partial(_find_idx_set, name=name, subfolder=subfolder, classes=classes, source=source),
        tuple(RemoteFile(f"{base}{file}.gz", sum_) for file, sum_ in zip(IDX_FILES, checksums, strict=True)),
        subfolder=name,
        files=f"{name.replace('-', '_')}.npz, or the four IDX files in a sub-folder {name}/,",
    )


_IMAGE_SETS: dict[str, _ImageSet] = {
    "mnist": _idx_set(
        "mnist",
        "MNIST/raw",
        _DIGITS,
        _MNIST,
        _MNIST_URL,
        (
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
    "fashion-mnist": _idx_set(
        "fashion-mnist",
        "FashionMNIST/raw",
        _FASHION,
        _FASHION_MNIST,
        _FASHION_URL,
        (
            "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        ),
    ),
    "cifar10": _ImageSet(
        partial(_find_cifar, name="cifar10", classes=_CIFAR10, about="CIFAR-10, Krizhevsky 2009"),
        (
            RemoteFile(
                f"{_CIFAR_URL}cifar-10-python.tar.gz",
                "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            ),
        ),
        subfolder="",
        files="cifar-10-python.tar.gz, its folder cifar-10-batches-py, or cifar10_jpeg.npz",
    ),
    "cifar100": _ImageSet(
        partial(
            _find_cifar, name="cifar100", classes=_CIFAR100, about="CIFAR-100, Krizhevsky 2009, fine labels"
        ),
        (
            RemoteFile(
                f"{_CIFAR_URL}cifar-100-python.tar.gz",
                "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            ),
        ),
        subfolder="",
        files="cifar-100-python.tar.gz or its folder cifar-100-python",
    ),
}
