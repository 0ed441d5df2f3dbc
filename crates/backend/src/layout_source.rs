//! File layouts as mounted file systems report them.
//!
//! Lustre has targets that a caller can request. GlusterFS puts a whole file on one brick, or on one group of
//! replicas, and reports which. CephFS spreads the objects of a file and reports only the object size: its
//! pool is the target. A file system that reports nothing counts as one target.

use crate::{Layout, lustre};
use forebay_policy::place::Description;
use rustix::fs::{fgetxattr, getxattr};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};

/// GlusterFS reports an entry's bricks in this attribute, to root only.
const PATH_INFO: &str = "trusted.glusterfs.pathinfo";
/// An attribute that every CephFS directory has.
const CEPH: &str = "ceph.dir.entries";
const CEPH_POOL: &str = "ceph.dir.layout.pool";
const CEPH_FILE: &str = "ceph.file.layout";
/// Longest attribute value that is read.
const LONGEST: usize = 64 << 10;

/// The source of layout information.
pub(crate) enum LayoutSource {
    /// None.
    Nothing,
    /// Lustre: its targets.
    Lustre(Description),
    /// GlusterFS: its bricks, or groups of them.
    Gluster(Vec<String>),
    /// CephFS: the pool.
    Ceph(String),
}

impl LayoutSource {
    /// Detects the file system of a directory.
    pub(crate) fn by(root: &OwnedFd) -> LayoutSource {
        if let Some(description) = lustre::on(root) {
            return LayoutSource::Lustre(description);
        }
        let path = format!("/proc/self/fd/{}", root.as_raw_fd());
        let read = |name: &str| {
            let mut bytes = vec![0; LONGEST];
            let len = getxattr(&path, name, bytes.as_mut_slice()).ok()?;
            String::from_utf8(bytes[..len].to_vec()).ok()
        };
        if let Some(bricks) = read(PATH_INFO).map(|text| bricks(&text)).filter(|bricks| !bricks.is_empty()) {
            return LayoutSource::Gluster(bricks);
        }
        match read(CEPH) {
            Some(_) => LayoutSource::Ceph(
                read(CEPH_POOL).map_or("ceph".to_owned(), |pool| format!("pool {}", trimmed(&pool))),
            ),
            None => LayoutSource::Nothing,
        }
    }

    /// The names of the targets; empty if the file system reports none.
    pub(crate) fn targets(&self) -> Vec<String> {
        match self {
            LayoutSource::Nothing => Vec::new(),
            LayoutSource::Lustre(description) => lustre::named(&description.targets),
            LayoutSource::Gluster(targets) => targets.clone(),
            LayoutSource::Ceph(pool) => vec![pool.clone()],
        }
    }

    /// The layout of a file, if the file system reports a valid one.
    pub(crate) fn layout(&self, file: &File) -> Option<Layout> {
        let read = |name: &str| {
            let mut bytes = vec![0; LONGEST];
            let len = fgetxattr(file, name, bytes.as_mut_slice()).ok()?;
            String::from_utf8(bytes[..len].to_vec()).ok()
        };
        match self {
            LayoutSource::Nothing => None,
            LayoutSource::Lustre(description) => {
                let most = description.targets.iter().map(|target| target.index).max();
                let known = |layout: &Layout| layout.targets.iter().all(|&ost| Some(ost) <= most);
                lustre::layout(file).filter(known)
            }
            LayoutSource::Gluster(known) => {
                let lies = bricks(&read(PATH_INFO)?);
                let place = known.iter().position(|brick| lies.first() == Some(brick))?;
                Some(Layout { targets: vec![place as u32], stripe: u64::MAX })
            }
            LayoutSource::Ceph(_) => {
                Some(Layout { targets: vec![0], stripe: ceph_stripe(&read(CEPH_FILE)?)? })
            }
        }
    }
}

fn trimmed(text: &str) -> &str {
    text.trim_matches(['\0', '\n', ' '])
}

/// The bricks of an entry, as in `(<DISTRIBUTE:v-dht> (<REPLICATE:v-replicate-0> <POSIX(/b):h:/b/f> …))`.
/// Bricks that hold the same bytes count as one, by the name of their group.
fn bricks(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    // Nesting depth, and the depth of the enclosing replica group.
    let (mut depth, mut same): (usize, Option<usize>) = (0, None);
    let mut rest = text;
    while let Some(at) = rest.find(['(', ')', '<']) {
        let (mark, after) = (rest.as_bytes()[at], &rest[at + 1..]);
        rest = after;
        match mark {
            b'(' => depth += 1,
            b')' => {
                depth = depth.saturating_sub(1);
                same = same.filter(|&begun| depth >= begun);
            }
            _ => {
                let Some((what, after)) = after.split_once('>') else { break };
                rest = after;
                let group = ["REPLICATE:", "DISPERSE:"].iter().find_map(|kind| what.strip_prefix(kind));
                match (group, what.strip_prefix("POSIX(").and_then(|brick| brick.split_once("):"))) {
                    (Some(name), _) => {
                        found.push(name.to_owned());
                        same = same.or(Some(depth));
                    }
                    (None, Some((dir, place))) if same.is_none() => {
                        let host = place.split_once(':').map_or(place, |(host, _)| host);
                        found.push(format!("{host}:{dir}"));
                    }
                    _ => {}
                }
            }
        }
    }
    found.dedup();
    found
}

/// The preferred end of a write, as in `stripe_unit=4194304 stripe_count=1 object_size=4194304 pool=data`: an
/// object boundary with a stripe count of one, else a stripe boundary.
fn ceph_stripe(text: &str) -> Option<u64> {
    let value = |key: &str| {
        let mut words = trimmed(text).split_whitespace().filter_map(|word| word.split_once('='));
        words.find(|(name, _)| *name == key)?.1.parse::<u64>().ok()
    };
    let stripe = match value("stripe_count")? {
        1 => value("object_size")?,
        _ => value("stripe_unit")?,
    };
    (stripe > 0).then_some(stripe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gluster_bricks_are_parsed() {
        for (text, expected) in [
            ("(<DISTRIBUTE:v-dht> <POSIX(/b1):one:/b1/f>)", vec!["one:/b1"]),
            (
                "((<DISTRIBUTE:v-dht> <POSIX(/b1):one:/b1/> <POSIX(/b2):two:/b2/>) (v-dht-layout (v-client-0 0 1) (v-client-1 2 3)))",
                vec!["one:/b1", "two:/b2"],
            ),
            (
                "(<DISTRIBUTE:v-dht> (<REPLICATE:v-replicate-0> <POSIX(/b1):one:/b1/> <POSIX(/b2):two:/b2/>) \
                 (<REPLICATE:v-replicate-1> <POSIX(/b3):one:/b3/> <POSIX(/b4):two:/b4/>))",
                vec!["v-replicate-0", "v-replicate-1"],
            ),
            ("<POSIX(/b1):one:/b1/f>", vec!["one:/b1"]),
            ("nothing of the kind", vec![]),
            ("(<POSIX(", vec![]),
            (")))", vec![]),
        ] {
            assert_eq!(bricks(text), expected, "{text}");
        }
    }

    #[test]
    fn ceph_stripes_are_parsed() {
        for (text, expected) in [
            ("stripe_unit=4194304 stripe_count=1 object_size=8388608 pool=data", Some(8 << 20)),
            ("stripe_unit=65536 stripe_count=4 object_size=4194304 pool=data\0", Some(65536)),
            ("stripe_unit=0 stripe_count=4", None),
            ("pool=data", None),
        ] {
            assert_eq!(ceph_stripe(text), expected, "{text}");
        }
    }
}
