#!/usr/bin/env python3
"""Lists the packages in the binary `semel`: their licences as a text, or a bill of materials (CycloneDX 1.6, JSON).

    third_party.py licences TRIPLE
    third_party.py sbom TRIPLE

Both read what Cargo knows (Cargo.lock and the sources in its cache), so the same sources give the same bytes. The time in the
bill of materials is SOURCE_DATE_EPOCH.
"""
import datetime
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib
import uuid

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = "semel-server"

# C libraries whose sources are part of a crate: name, licence, header with the version, how it is written there.
BUNDLED = {
    "libsqlite3-sys": ("sqlite", "blessing", "sqlite3/sqlite3.h", r'#define SQLITE_VERSION\s+"([0-9.]+)"'),
    "libmimalloc-sys": ("mimalloc", "MIT", "c_src/mimalloc/v2/include/mimalloc.h", r"#define MI_MALLOC_VERSION (\d+)"),
}

LICENCE_FILE = re.compile(r"^(licen[cs]e|copying|copyright|notice|unlicense)", re.IGNORECASE)


def cargo(*arguments):
    command = [os.environ.get("CARGO", "cargo"), *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def shipped(triple):
    """The packages that are linked into the binary, and those that generate code for it; sorted by name and version."""
    tree = cargo("tree", "--locked", "-p", BINARY, "-e", "normal", "--target", triple, "--prefix", "none", "-f", "{p}")
    wanted = {tuple(line.split()[:2]) for line in tree.splitlines() if line.strip()}
    metadata = json.loads(cargo("metadata", "--locked", "--format-version", "1", "--filter-platform", triple))
    packages = {(package["name"], "v" + package["version"]): package for package in metadata["packages"]}
    missing = wanted - packages.keys()
    if missing:
        sys.exit(f"cargo tree and cargo metadata disagree about {sorted(missing)}")
    found = sorted((packages[key] for key in wanted), key=lambda package: (package["name"], package["version"]))
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    return found, nodes


def is_ours(package):
    return package["source"] is None


def expression(package):
    """An SPDX expression. Old manifests separate alternatives with a slash."""
    return re.sub(r"\s*/\s*", " OR ", package["license"] or "") or sys.exit(f"{package['name']} has no licence")


def folder(package):
    return pathlib.Path(package["manifest_path"]).parent


def texts(package):
    """The licence files of a package, with those of the code that it contains."""
    found = {}
    for path in sorted(folder(package).rglob("*")):
        if LICENCE_FILE.match(path.name) and path.is_file() and path.suffix not in (".rs", ".py", ".c", ".h", ".json"):
            text = path.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n").strip()
            if text:
                found[text] = path.relative_to(folder(package)).as_posix()
    return found


def bundled(package):
    if package["name"] not in BUNDLED:
        return None
    name, licence, header, pattern = BUNDLED[package["name"]]
    match = re.search(pattern, (folder(package) / header).read_text(encoding="utf-8"))
    if not match:
        sys.exit(f"{package['name']}: no version in {header}")
    version = match[1]
    if version.isdigit():  # 20302 is 2.3.2
        version = ".".join(str(int(part)) for part in (version[:-4], version[-4:-2], version[-2:]))
    return name, version, licence


def licences(triple):
    packages, _ = shipped(triple)
    packages = [package for package in packages if not is_ours(package)]
    users = {}
    lines = [
        "THIRD-PARTY LICENCES",
        "",
        "The binary `semel` contains the packages below. Each line has a package, its version, its licence (an SPDX",
        "expression) and the numbers of its licence texts and notices, which follow the list. It also contains the standard",
        "library of Rust (MIT OR Apache-2.0).",
        "",
    ]
    rows = []
    for package in packages:
        found = texts(package)
        for text in found:
            users.setdefault(text, []).append(f"{package['name']} {package['version']}")
        rows.append((package, found))
    numbers = {text: number for number, text in enumerate(users, 1)}
    for package, found in rows:
        named = f"{package['name']} {package['version']}"
        where = ", ".join(str(numbers[text]) for text in found)
        if not where:  # No file: the line says whose it is, and which of its licences is taken.
            if "Apache-2.0" not in expression(package):
                sys.exit(f"{named} has no licence file, and {expression(package)} needs one")
            where = f"(c) {', '.join(package['authors']) or package['repository']}; taken under Apache-2.0, as in LICENSE"
        lines.append(f"{named:40} {expression(package)} [{where}]")
        if part := bundled(package):
            lines.append(f"  with {part[0]} {part[1]} ({part[2]})")
    for text, number in numbers.items():
        lines += ["", "=" * 100, f"[{number}] {', '.join(users[text])}", "=" * 100, "", text]
    print("\n".join(lines))


def sbom(triple):
    packages, nodes = shipped(triple)
    lock = (ROOT / "Cargo.lock").read_bytes()
    checksums = {
        (package["name"], package["version"]): package.get("checksum") for package in tomllib.loads(lock.decode())["package"]
    }
    references = {package["id"]: f"pkg:cargo/{package['name']}@{package['version']}" for package in packages}
    main = next(package for package in packages if package["name"] == BINARY)
    components = []
    for package in packages:
        if package is main:
            continue
        component = {
            "type": "library",
            "bom-ref": references[package["id"]],
            "name": package["name"],
            "version": package["version"],
            "purl": references[package["id"]],
            "licenses": [{"expression": expression(package)}],
        }
        if package["description"]:
            component["description"] = " ".join(package["description"].split())
        if checksum := checksums[package["name"], package["version"]]:
            component["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        if package["repository"]:
            component["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
        if part := bundled(package):
            name, version, licence = part
            purl = f"pkg:generic/{name}@{version}"
            component["components"] = [
                {
                    "type": "library",
                    "bom-ref": purl,
                    "name": name,
                    "version": version,
                    "purl": purl,
                    "licenses": [{"expression": licence}],
                }
            ]
        components.append(component)
    dependencies = [
        {
            "ref": references[package["id"]],
            "dependsOn": sorted(
                references[dependency["pkg"]]
                for dependency in nodes[package["id"]]["deps"]
                if dependency["pkg"] in references and any(kind["kind"] is None for kind in dependency["dep_kinds"])
            ),
        }
        for package in packages
    ]
    moment = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    identity = hashlib.sha256(lock + triple.encode() + main["version"].encode()).hexdigest()
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_OID, identity).urn,
        "version": 1,
        "metadata": {
            "timestamp": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "application",
                "bom-ref": references[main["id"]],
                "name": "semel",
                "version": main["version"],
                "purl": references[main["id"]],
                "licenses": [{"expression": expression(main)}],
                "properties": [{"name": "semel:target", "value": triple}],
            },
        },
        "components": components,
        "dependencies": sorted(dependencies, key=lambda dependency: dependency["ref"]),
    }
    print(json.dumps(document, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["licences", triple]:
            licences(triple)
        case ["sbom", triple]:
            sbom(triple)
        case _:
            sys.exit(__doc__)
