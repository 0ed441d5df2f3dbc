//! What we build on: where it comes from, under which licence, what we decided against, and which of our own crates
//! may use which.

use super::{Finding, licence};
use crate::shell;
use crate::tree::Tree;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Crates we decided against, directly or through others, and why.
const UNWANTED: &[(&str, &str)] = &[
    ("async-ucx", "panics in release builds; bind the C library ourselves"),
    ("bincode", "unmaintained, with an advisory; use postcard"),
    ("glommio", "no release since 2024; use tokio, or io-uring for disks"),
    ("monoio", "no release since 2024; use tokio, or io-uring for disks"),
    ("ofi-libfabric-sys", "does not build with Debian's library"),
    ("redhook", "stale; define the symbol and look up the next one"),
    ("retour", "stale; use iced-x86 where code is rewritten"),
    ("sled", "old; use fjall"),
    ("tokio-uring", "no release since 2024; use io-uring"),
];

/// Which of our crates each of our crates may use, beside `model`. Tests may use any. A new crate needs a different
/// artefact, a different permitted effect or a different promise of stability, and a line here.
const ROOMS: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("policy", &[]),
    ("wire", &[]),
    ("shm", &[]),
    ("store", &["shm"]),
    ("backend", &["policy"]),
    ("server", &["policy", "wire", "shm", "store", "backend"]),
    ("client", &["wire", "shm"]),
    ("preload", &["client", "wire"]),
    ("place", &["policy", "wire"]),
    ("fuse", &["client"]),
    ("planner", &["policy"]),
    ("sim", &["policy", "planner"]),
    ("report", &["policy", "planner", "sim"]),
    (
        "cli",
        &[
            "policy", "wire", "shm", "store", "backend", "server", "client", "preload", "place", "fuse",
            "planner", "sim", "report", "bench",
        ],
    ),
    ("bench", &["policy", "wire", "store", "backend", "server", "client", "report"]),
    ("testkit", &["wire"]),
    ("proof", &["testkit", "wire", "store", "backend", "server", "client"]),
    ("xtask", &[]),
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = deny_file(tree);
    match metadata() {
        Ok(metadata) => findings.extend(judge(&metadata)),
        Err(why) => findings.push(Finding::wrong("Cargo.lock", why)),
    }
    findings
}

/// The tree as this machine builds it; what other systems would add is not ours to judge.
fn metadata() -> Result<Metadata, String> {
    let version = shell::output(shell::command("rustc").arg("-vV"))?;
    let host =
        version.lines().find_map(|line| line.strip_prefix("host: ")).ok_or("rustc -vV names no host")?;
    let mut cargo = shell::cargo();
    cargo.args(["metadata", "--locked", "--format-version", "1", "--filter-platform", host]);
    Metadata::read(&shell::output(&mut cargo)?)
}

#[derive(Debug)]
struct Metadata {
    root: String,
    packages: Vec<Package>,
}

#[derive(Debug)]
struct Package {
    name: String,
    version: String,
    /// None for a path.
    source: Option<String>,
    licence: Option<String>,
    manifest: String,
    /// Names of all packages it needs outside of its tests.
    needs: Vec<String>,
}

impl Metadata {
    fn read(json: &str) -> Result<Metadata, String> {
        let value: Value =
            serde_json::from_str(json).map_err(|why| format!("cannot read cargo metadata: {why}"))?;
        let packages = value["packages"].as_array().ok_or("cargo metadata lists no packages")?;
        Ok(Metadata {
            root: text(&value, "workspace_root").ok_or("cargo metadata names no workspace")?,
            packages: packages.iter().map(Package::read).collect::<Result<_, _>>()?,
        })
    }
}

impl Package {
    fn read(value: &Value) -> Result<Package, String> {
        let must = |field| text(value, field).ok_or(format!("cargo metadata: a package without {field}"));
        let needs = value["dependencies"].as_array().map_or(&[][..], Vec::as_slice);
        let needs = needs.iter().filter(|need| need["kind"] != "dev").filter_map(|need| text(need, "name"));
        Ok(Package {
            name: must("name")?,
            version: must("version")?,
            source: text(value, "source"),
            licence: text(value, "license"),
            manifest: must("manifest_path")?,
            needs: needs.collect(),
        })
    }

    fn place(&self) -> String {
        format!("{} {}", self.name, self.version)
    }
}

fn text(value: &Value, field: &str) -> Option<String> {
    value[field].as_str().map(str::to_owned)
}

const DENY: &str = "deny.toml";

/// Whether `deny.toml`, which the hosted workflow uses, has our own lists of licences and unwanted crates.
fn deny_file(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.get(DENY) else { return vec![Finding::wrong(DENY, "is missing")] };
    let listed = |before: &str, part: &str| -> BTreeSet<String> {
        let list = text
            .split_once(before)
            .map_or("", |(_, rest)| rest.split_once("\n]").map_or("", |(list, _)| list));
        let lines = list.lines().filter_map(|line| line.trim().strip_prefix(part)?.split_once('"'));
        lines.map(|(name, _)| name.to_owned()).collect()
    };
    let licences: BTreeSet<String> = licence::ACCEPTED.iter().map(|name| (*name).to_owned()).collect();
    let crates: BTreeSet<String> = UNWANTED.iter().map(|(name, _)| (*name).to_owned()).collect();
    let mut findings = Vec::new();
    for (what, ours, theirs) in [
        ("licence", licences, listed("\nallow = [", "\"")),
        ("crate", crates, listed("\ndeny = [", "{ crate = \"")),
    ] {
        let differs = ours.symmetric_difference(&theirs);
        findings.extend(differs.map(|name| {
            Finding::wrong(DENY, format!("{what} {name} is in this list or in xtask's, and not in both"))
        }));
    }
    findings
}

fn judge(metadata: &Metadata) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in &metadata.packages {
        findings.extend(origin(package, &metadata.root));
        findings.extend(terms(package));
        findings.extend(unwanted(package));
        if package.source.is_none() {
            findings.extend(room(package, &metadata.root));
        }
    }
    findings.extend(twice(&metadata.packages));
    findings
}

fn origin(package: &Package, root: &str) -> Option<Finding> {
    match &package.source {
        None if package.manifest.starts_with(&format!("{root}/")) => None,
        None => Some(Finding::wrong(package.place(), "is a path outside of the workspace")),
        Some(source) if source.starts_with("registry+") || source.starts_with("sparse+") => None,
        Some(source) => {
            let kind = source.split('+').next().unwrap_or(source);
            Some(Finding::wrong(package.place(), format!("comes from {kind}, not from a registry")))
        }
    }
}

fn terms(package: &Package) -> Option<Finding> {
    let Some(licence) = &package.licence else {
        return Some(Finding::wrong(package.place(), "names no licence"));
    };
    match licence::accepted(licence) {
        Ok(true) => None,
        Ok(false) => Some(Finding::wrong(package.place(), format!("licence {licence} is not accepted"))),
        Err(why) => Some(Finding::wrong(package.place(), why)),
    }
}

fn unwanted(package: &Package) -> Option<Finding> {
    let (_, why) = UNWANTED.iter().find(|(name, _)| *name == package.name)?;
    Some(Finding::wrong(package.place(), format!("is not wanted: {why}")))
}

/// Checks one of our own crates against [`ROOMS`].
fn room(package: &Package, root: &str) -> Vec<Finding> {
    let dir = package.manifest.strip_prefix(root).unwrap_or(&package.manifest);
    let dir = dir.trim_start_matches('/').trim_end_matches("/Cargo.toml");
    let name = dir.strip_prefix("crates/").unwrap_or(dir);
    let Some((_, may)) = ROOMS.iter().find(|(room, _)| *room == name) else {
        let what = "is a new room: give it a line in ROOMS (xtask) and in ARCHITECTURE.md";
        return vec![Finding::wrong(dir, what)];
    };
    let ours = package.needs.iter().filter_map(|need| need.strip_prefix("forebay-"));
    ours.filter(|need| *need != "model" && !may.contains(need))
        .map(|need| Finding::wrong(dir, format!("may not use {need}: see ROOMS (xtask)")))
        .collect()
}

fn twice(packages: &[Package]) -> Vec<Finding> {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in packages {
        versions.entry(&package.name).or_default().insert(&package.version);
    }
    versions.retain(|_, versions| versions.len() > 1);
    let list = |versions: BTreeSet<&str>| versions.into_iter().collect::<Vec<_>>().join(", ");
    versions
        .into_iter()
        .map(|(name, of)| Finding::note(name, format!("is built twice: {}", list(of))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify::Weight;

    /// A tree of one package, given as the fields that matter.
    fn tree(name: &str, fields: &str) -> String {
        let manifest = if fields.contains("manifest_path") {
            ""
        } else {
            ", \"manifest_path\": \"/cache/x/Cargo.toml\""
        };
        format!(
            "{{\"workspace_root\": \"/ws\", \"packages\": [{{\"name\": \"{name}\", \"version\": \"1.0.0\" {manifest} {fields}}}]}}"
        )
    }

    fn check(name: &str, fields: &str, expected: &[&str]) {
        let findings = judge(&Metadata::read(&tree(name, fields)).unwrap());
        let whats: Vec<&str> = findings.iter().map(|finding| finding.what.as_str()).collect();
        assert_eq!(whats.len(), expected.len(), "{fields}: {whats:?}");
        for (what, expected) in whats.iter().zip(expected) {
            assert!(what.contains(expected), "{fields}: {what}");
        }
    }

    const MIT: &str = r#", "license": "MIT""#;
    const REGISTRY: &str = r#", "source": "registry+https://example.org/index""#;

    #[test]
    fn origins_and_licences() {
        check("serde", &format!("{REGISTRY}{MIT}"), &[]);
        check(
            "serde",
            &format!(r#", "source": "git+https://example.org/serde#1" {MIT}"#),
            &["comes from git"],
        );
        check("serde", &format!(r#", "source": null {MIT}"#), &["outside of the workspace", "new room"]);
        check("serde", REGISTRY, &["names no licence"]);
        check(
            "serde",
            &format!(r#"{REGISTRY}, "license": "GPL-3.0-only""#),
            &["GPL-3.0-only is not accepted"],
        );
        check("serde", &format!(r#"{REGISTRY}, "license": "MIT OR""#), &["cannot read the licence"]);
    }

    #[test]
    fn lists_of_deny_toml_are_those_of_this_check() {
        let allow: String = licence::ACCEPTED.iter().map(|name| format!("    \"{name}\",\n")).collect();
        let deny: String = UNWANTED
            .iter()
            .map(|(name, _)| format!("    {{ crate = \"{name}\", reason = \"x\" }},\n"))
            .collect();
        let text = format!("[licenses]\nallow = [\n{allow}]\n[bans]\ndeny = [\n{deny}]\n");
        let found = |text: &str| deny_file(&Tree::of(&[(DENY, text)])).len();
        assert_eq!(found(&text), 0);
        assert_eq!(found(&text.replace("\"MIT\",", "\"GPL-3.0\",")), 2);
        assert_eq!(found(&text.replace("\"sled\"", "\"fjall\"")), 2);
        assert_eq!(deny_file(&Tree::default()).len(), 1);
    }

    #[test]
    fn unwanted_crates() {
        for (name, why) in UNWANTED {
            check(name, &format!("{REGISTRY}{MIT}"), &[why]);
        }
    }

    #[test]
    fn rooms() {
        let ours = |dir: &str, needs: &str| {
            format!(r#", "manifest_path": "/ws/{dir}/Cargo.toml", "dependencies": [{needs}] {MIT}"#)
        };
        let (store, wire) = (r#"{"name": "forebay-store", "kind": null}"#, r#"{"name": "forebay-wire"}"#);
        let (model, dev) = (r#"{"name": "forebay-model"}"#, r#"{"name": "forebay-store", "kind": "dev"}"#);
        check("forebay-server", &ours("crates/server", &format!("{store}, {wire}, {model}")), &[]);
        check("forebay-client", &ours("crates/client", &format!("{store}, {wire}")), &["may not use store"]);
        check("forebay-client", &ours("crates/client", dev), &[]);
        check("forebay-utils", &ours("crates/utils", model), &["new room"]);
        check("xtask", &ours("xtask", ""), &[]);
    }

    #[test]
    fn two_versions_are_a_note() {
        let package = |version: &str| Package {
            name: "syn".into(),
            version: version.into(),
            source: None,
            licence: None,
            manifest: String::new(),
            needs: vec![],
        };
        assert_eq!(twice(&[package("1.0.0"), package("1.0.0")]), []);
        let found = twice(&[package("1.0.0"), package("2.0.0")]);
        assert_eq!(found, [Finding::note("syn", "is built twice: 1.0.0, 2.0.0")]);
        assert_eq!(found[0].weight, Weight::Note);
    }

    #[test]
    fn what_cargo_prints_may_be_nonsense() {
        for nonsense in ["", "{}", r#"{"packages": []}"#, r#"{"packages": [{}], "workspace_root": "/ws"}"#] {
            assert!(Metadata::read(nonsense).is_err(), "{nonsense}");
        }
    }
}
