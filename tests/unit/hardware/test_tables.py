"""The tables of devices and prices: complete, and a user's over them."""

import pytest

from froude.config import ConfigError
from froude.hardware.sizes import Place
from froude.hardware.tables import device, devices, price

ASKED = (
    "a100-40gb",
    "a100-80gb",
    "h100-80gb",
    "h100-pcie",
    "h100-nvl",
    "h200",
    "b200",
    "l40s",
    "rtx-4090",
    "mi300x",
    "cpu",
)


def test_every_device_has_its_figures_and_a_price():
    assert {each.name for each in devices()} == set(ASKED)
    for each in devices():
        assert each.flops("bf16") >= each.flops("fp32") > 1e11
        assert price(each.name) > 0


def test_each_figure_of_the_tables_has_a_source(root):
    for kind, mark in (("devices", "https://"), ("prices", "202")):
        text = (root / f"platform/froude/hardware/{kind}.toml").read_text()
        for section in text.split("\n[")[1:]:
            if not section.startswith("cpu]"):  # nobody's, as it says
                assert mark in section or "as above" in section, section


def test_a_device_that_no_table_has_is_refused_with_the_nearest():
    with pytest.raises(
        ConfigError, match=r"'h100-80' is not \(did you mean 'h100-80gb'\?\); known: a100-40gb"
    ):
        device("h100-80")


def test_a_users_tables_come_over_the_packages(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        "[mine]\nmemory_gb = 10\nfp32 = 1\nbandwidth = 2\nlink = 3\nnetwork = 4\n[h200]\ndollars = 0.5\n"
    )
    assert device("mine", str(file)).memory == 10e9
    file.write_text(file.read_text().replace("[h200]", 'name = "another"\n[h200]'))
    assert device("mine", str(file)).name == "mine"
    assert price("h200", str(file)) == 0.5
    with pytest.raises(ConfigError, match=r'mine has no bf16; use "fp32"$'):
        device("mine", str(file)).flops("bf16")
    with pytest.raises(ConfigError, match=r"a device must have a price, dollars .* 'mine' has none"):
        price("mine", str(file))
    file.write_text("[H200]\ndollars = 0.5\n")
    with pytest.raises(
        ConfigError, match=r"must name devices of the table, but has 'H200' \(did you mean 'h200'"
    ):
        price("h200", str(file))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (
            "[h200]\ndollars = nan",
            r"a price must be dollars an hour, a number from 0 to 1,000,000, but \[h200\]",
        ),
        ("[h200]\ndollars = -1", "from 0 to 1,000,000, but .* has -1"),
        ("[h200]\ndollars = inf", "has inf; correct it"),
        ("[h200]\ndollars = true", "has True; correct it"),
        ("[h200]", "has none; correct it"),
        ("[h200]\ndolars = 3", r"has 'dolars' \(did you mean 'dollars'\?\); rename it"),
        ("['']\ndollars = 3", "must name each device"),
    ],
)
def test_all_of_a_table_of_prices_is_checked(tmp_path, table, words):
    """Also what it says of others than the device in question."""
    file = tmp_path / "mine.toml"
    file.write_text(f"[a100-40gb]\ndollars = 1\n{table}\n")
    with pytest.raises(ConfigError, match=words):
        price("a100-40gb", str(file))


def test_one_file_may_have_devices_and_prices(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        "[h200]\ndollars = 2\n[mine]\nmemory_gb = 1\nfp32 = 1\nbandwidth = 1\nlink = 1\nnetwork = 1\ndollars = 9\n"
    )
    assert price("mine", str(file), str(file)) == 9.0
    assert device("mine", str(file)).memory == 1e9
    assert device("h200", str(file)) == device("h200")
    assert {each.name for each in devices(str(file))} == {*ASKED, "mine"}


@pytest.mark.parametrize("key", ["memory_gb", "fp32", "bf16", "bandwidth", "link", "network", "sustained"])
@pytest.mark.parametrize("value", ["0", "-1", "1e-300", "1e300", "inf", "nan"])
def test_a_figure_is_one_that_a_device_may_have(tmp_path, key, value):
    figures = {"memory_gb": 1, "fp32": 1, "bandwidth": 1, "link": 1, "network": 1} | {key: value}
    file = tmp_path / "mine.toml"
    file.write_text("[mine]\n" + "".join(f"{name} = {each}\n" for name, each in figures.items()))
    with pytest.raises(ConfigError, match=rf"\[mine\] of .*`device\.{key}`"):
        device("mine", str(file))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[a\n", "must name a TOML file"),
        ("a = 1\n", "must hold a table for each device"),
        ("[a]\nmemory = 3\n", "unknown key `device.memory`; did you mean `device.memory_gb`"),
        ("[a]\nmemory_gb = 3\n", r"\[a\] of .*mine\.toml: `device\.fp32` is required and missing; add it"),
    ],
)
def test_a_table_that_is_not_one_is_refused(tmp_path, text, words):
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words):
        devices(str(file))
    with pytest.raises(ConfigError, match=r"none\.toml can't be read"):
        devices(str(tmp_path / "none.toml"))


@pytest.mark.parametrize("text", ["", "4x", "x8", "0x8", "4x8x2", "-1", "4 x 8"])
def test_nodes_are_two_numbers(text):
    with pytest.raises(ConfigError, match="--nodes must be nodes x devices"):
        Place.parse(text)
    assert Place.parse("4x8").workers == 32
    assert str(Place.parse("8")) == "1x8"


def test_fp8_is_for_devices_that_have_it():
    with pytest.raises(ConfigError, match=r'a100-80gb has no fp8; use "bf16", "fp32" or "tf32"$'):
        device("a100-80gb").flops("fp8")
    assert device("h100-80gb").flops("fp16") == 989.4e12
