//! The model of a file system: a list of nodes, with paths, permissions and names; no store, no locks. `oracle` defines
//! the operations.

use crate::op::Seen;
use forebay_model::{ErrorKind, FileKind, Identity, Time};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Identifies a node; never reused.
pub type NodeId = usize;

/// The root directory.
pub(crate) const ROOT: NodeId = 0;
pub(crate) const READ: u16 = 4;
pub(crate) const WRITE: u16 = 2;
pub(crate) const SEARCH: u16 = 1;

const MOST_LINKS: usize = 40;
/// The length that every directory reports.
const DIRECTORY: u64 = 4096;

/// A file, directory or symbolic link.
#[derive(Clone, Debug)]
pub struct Node {
    pub(crate) mode: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) xattrs: BTreeMap<String, Vec<u8>>,
    /// Modification time, if an operation has set it.
    pub(crate) mtime: Option<Time>,
    /// Its contents.
    pub body: Body,
}

/// The kind and contents of a node.
#[derive(Clone, Debug)]
pub enum Body {
    /// A file and its bytes.
    File(Arc<Vec<u8>>),
    /// A symbolic link and its target.
    Link(String),
    /// A directory.
    Dir {
        /// The parent directory.
        parent: NodeId,
        /// Its entries.
        entries: BTreeMap<String, NodeId>,
    },
}

/// The whole file system. Nodes without a name stay, because they may be open.
#[derive(Clone, Debug)]
pub struct Tree {
    pub(crate) nodes: Vec<Node>,
    /// Directories report a link count of 1, that is, not counted.
    pub(crate) hides_links: bool,
}

pub(crate) type Checked<T> = Result<T, ErrorKind>;

impl Tree {
    /// A tree with a root directory only.
    #[must_use]
    pub fn new(uid: u32, gid: u32, mode: u16) -> Tree {
        let body = Body::Dir { parent: ROOT, entries: BTreeMap::new() };
        let root = Node { mode, uid, gid, xattrs: BTreeMap::new(), mtime: None, body };
        Tree { nodes: vec![root], hides_links: false }
    }

    /// A node.
    #[must_use]
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id]
    }

    pub(crate) fn is_dir(&self, id: NodeId) -> bool {
        matches!(self.nodes[id].body, Body::Dir { .. })
    }

    /// The bytes of a file.
    #[must_use]
    pub fn bytes(&self, id: NodeId) -> &[u8] {
        match &self.nodes[id].body {
            Body::File(bytes) => bytes,
            _ => panic!("not a file"),
        }
    }

    /// The bytes of a file that is about to change.
    pub fn bytes_mut(&mut self, id: NodeId) -> &mut Vec<u8> {
        let node = &mut self.nodes[id];
        node.mtime = None;
        match &mut node.body {
            Body::File(bytes) => Arc::make_mut(bytes),
            _ => panic!("not a file"),
        }
    }

    pub(crate) fn entries(&self, dir: NodeId) -> Checked<&BTreeMap<String, NodeId>> {
        match &self.nodes[dir].body {
            Body::Dir { entries, .. } => Ok(entries),
            _ => Err(ErrorKind::NotDirectory),
        }
    }

    pub(crate) fn entries_mut(&mut self, dir: NodeId) -> &mut BTreeMap<String, NodeId> {
        match &mut self.nodes[dir].body {
            Body::Dir { entries, .. } => entries,
            _ => panic!("not a directory"),
        }
    }

    pub(crate) fn parent(&self, dir: NodeId) -> NodeId {
        match self.nodes[dir].body {
            Body::Dir { parent, .. } => parent,
            _ => panic!("not a directory"),
        }
    }

    /// The attributes that `stat` should report.
    #[must_use]
    pub fn seen(&self, id: NodeId) -> Seen {
        let node = &self.nodes[id];
        let (kind, size) = match &node.body {
            Body::File(bytes) => (FileKind::File, bytes.len() as u64),
            Body::Link(target) => (FileKind::Symlink, target.len() as u64),
            Body::Dir { .. } => (FileKind::Directory, DIRECTORY),
        };
        Seen { kind, mode: node.mode, links: self.links(id), owner: (node.uid, node.gid), size }
    }

    fn links(&self, id: NodeId) -> u32 {
        let count = match &self.nodes[id].body {
            Body::Dir { .. } if self.hides_links => 1,
            Body::Dir { entries, .. } => 2 + entries.values().filter(|&&child| self.is_dir(child)).count(),
            _ => {
                // Removed directories are empty, so every entry is in the tree.
                let entries = (0..self.nodes.len()).filter_map(|dir| self.entries(dir).ok());
                entries.flat_map(BTreeMap::values).filter(|&&child| child == id).count()
            }
        };
        u32::try_from(count).expect("few names")
    }

    pub(crate) fn need(&self, who: &Identity, id: NodeId, bits: u16) -> Checked<()> {
        let node = &self.nodes[id];
        let granted = if who.is_root() {
            7
        } else if who.uid.0 == node.uid {
            node.mode >> 6
        } else if is_member(who, node.gid) {
            node.mode >> 3
        } else {
            node.mode
        };
        if bits & !granted == 0 { Ok(()) } else { Err(ErrorKind::AccessDenied) }
    }

    pub(crate) fn owns(&self, who: &Identity, id: NodeId) -> bool {
        who.is_root() || who.uid.0 == self.nodes[id].uid
    }

    /// Resolves a path from a directory. With `to_dir`, the result must be a directory, as with a trailing slash.
    pub(crate) fn walk(
        &self,
        who: &Identity,
        from: NodeId,
        path: &str,
        follow: bool,
        to_dir: bool,
    ) -> Checked<NodeId> {
        let mut left: VecDeque<String> = parts(path);
        let (mut at, mut links) = (from, 0);
        while let Some(part) = left.pop_front() {
            let entries = self.entries(at)?;
            self.need(who, at, SEARCH)?;
            let next = match part.as_str() {
                "." => at,
                ".." => self.parent(at),
                part => *entries.get(part).ok_or(ErrorKind::NotFound)?,
            };
            let through = to_dir || !left.is_empty();
            match &self.nodes[next].body {
                Body::Link(target) if follow || through => {
                    links += 1;
                    if links > MOST_LINKS {
                        return Err(ErrorKind::TooManyLinks);
                    }
                    if target.starts_with('/') {
                        at = ROOT;
                    }
                    let mut longer = parts(target);
                    longer.append(&mut left);
                    left = longer;
                }
                Body::File(_) | Body::Link(_) if through => return Err(ErrorKind::NotDirectory),
                _ => at = next,
            }
        }
        Ok(at)
    }

    /// The directory and the last name of a path.
    pub(crate) fn place(&self, who: &Identity, from: NodeId, path: &str) -> Checked<(NodeId, String)> {
        let mut above = parts(path);
        let name = above.pop_back().expect("paths end in a name");
        let above = Vec::from(above).join("/");
        let dir = if above.is_empty() { from } else { self.walk(who, from, &above, true, true)? };
        Ok((dir, name))
    }

    /// Whether `outer` is `inner` or one of its ancestors.
    pub(crate) fn is_above(&self, outer: NodeId, inner: NodeId) -> bool {
        let mut at = inner;
        while at != outer && at != ROOT {
            at = self.parent(at);
        }
        at == outer
    }
}

fn parts(path: &str) -> VecDeque<String> {
    path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

pub(crate) fn is_member(who: &Identity, gid: u32) -> bool {
    who.gid.0 == gid || who.groups.iter().any(|group| group.0 == gid)
}
