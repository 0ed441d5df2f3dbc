//! Layout attributes of GlusterFS and CephFS, through a file system that emulates them.

use crate::lustre::Mood;
use crate::world::{World, skip};
use forebay_backend::{Backend, Creation, Dir, Layout};
use forebay_model::{Gid, Name, Uid};

/// A back end in the mount, and files in it with their attributes.
fn with_attributes(
    attribute: &str,
    root: &[(&str, &str)],
    files: &[(&str, &str)],
) -> Option<(Vec<String>, Vec<Layout>)> {
    let world = World::new(&[])?;
    {
        let mut state = world.fs.lock();
        state.mood = Mood::Ignorant;
        let root = root.iter().map(|&(name, value)| ((String::new(), name), value));
        let files = files.iter().map(|&(file, value)| ((file.to_owned(), attribute), value));
        let all = root.chain(files).map(|((file, name), value)| ((file, name.to_owned()), value.to_owned()));
        state.others.extend(all);
    }
    let dir = Dir::open(world.path("pfs")).expect("a directory");
    let creation = Creation { owner: (Uid(0), Gid(0)), mode: 0o600, stripes: None };
    let lies = files.iter().map(|(file, _)| {
        let path = [Name::new(*file).expect("a name")];
        let wanted = Layout { targets: vec![0], stripe: 1 << 20 };
        dir.create_on(&path, &creation, &wanted).expect("a file").write_at(0, &[b"bytes"]).expect("written");
        dir.layout(&path).expect("a layout")
    });
    let lies = lies.collect();
    Some((dir.targets(), lies))
}

fn whole(target: u32) -> Layout {
    Layout { targets: vec![target], stripe: u64::MAX }
}

#[test]
fn gluster_brick_of_a_file_is_read() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can read the bricks of GlusterFS");
    }
    let info = "trusted.glusterfs.pathinfo";
    let bricks =
        "((<DISTRIBUTE:v-dht> <POSIX(/b1):one:/b1/> <POSIX(/b2):two:/b2/>) (v-dht-layout (v-client-0 0 1)))";
    let files = [
        ("a", "(<DISTRIBUTE:v-dht> <POSIX(/b2):two:/b2/a>)"),
        ("b", "(<DISTRIBUTE:v-dht> <POSIX(/b1):one:/b1/b>)"),
        ("strange", "(<DISTRIBUTE:v-dht> <POSIX(/b9):nine:/b9/c>)"),
    ];
    let Some((targets, lies)) = with_attributes(info, &[(info, bricks)], &files) else { return };
    assert_eq!(targets, ["one:/b1", "two:/b2"]);
    assert_eq!(lies, [whole(1), whole(0), whole(0)]);
}

#[test]
fn ceph_object_size_is_read() {
    let root = [("ceph.dir.entries", "3"), ("ceph.dir.layout.pool", "fast")];
    let files = [
        ("a", "stripe_unit=4194304 stripe_count=1 object_size=4194304 pool=fast"),
        ("b", "stripe_unit=65536 stripe_count=8 object_size=4194304 pool=fast"),
        ("c", "nothing that makes sense"),
    ];
    let Some((targets, lies)) = with_attributes("ceph.file.layout", &root, &files) else { return };
    assert_eq!(targets, ["pool fast"]);
    let stripe = |stripe| Layout { targets: vec![0], stripe };
    assert_eq!(lies, [stripe(4 << 20), stripe(65536), whole(0)]);
}
