//! Many calls at once to storage that hangs: others find room.

use std::{
    cell::Cell,
    fs,
    io::Write,
    ops::Range,
    os::unix::net::UnixStream,
    sync::mpsc::{self, Sender, TryRecvError},
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use wharf_flex::{
    SOCKET,
    frame::{self, Reply, Request, Status},
};
use wharf_testbed::devices::processes;

use crate::{
    common::create,
    csi,
    guard::fuse_file,
    hung::Stopped,
    proxy::BlockServer,
    world::{Pod, World, is_mounted},
};

/// kubelet asks for so many volumes of the storage that hangs.
const CALLS: usize = 300;
/// So many are begun: a storage alone gets half of all room.
const BEGUN: usize = 256;
/// An agent asks 32 questions about volumes at once; some connections are of its watches and its lease, of
/// kubectl, and about to be closed.
const CONNECTIONS: usize = 96;
const DEADLINE: Duration = Duration::from_secs(180);

/// Volumes of the storage, all made at once.
fn make_volumes(world: &World) {
    let volume = |number: usize| {
        let options = json!({ "storageCluster": "dead", "image": name(number) });
        json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name(number) },
            "spec": {
                "capacity": { "storage": "64Mi" }, "accessModes": ["ReadWriteOnce"],
                "flexVolume": { "driver": "wharf.dev/volume", "options": options },
            },
        })
    };
    let items: Vec<Value> = (0..CALLS).map(volume).collect();
    create(&world.server, &json!({ "apiVersion": "v1", "kind": "List", "items": items }));
}

fn name(number: usize) -> String {
    format!("pv-dead-{number}")
}

/// Asks for some of them as the driver does. Answers come as they are given.
fn mount_each(world: &World, pod: &Pod, numbers: Range<usize>, answer: &Sender<Reply>) {
    let socket = world.driver().with_file_name(SOCKET);
    for number in numbers {
        let mut options = world.options(pod, &name(number), &name(number));
        options["storageCluster"] = json!("dead");
        let dir = world.dir_of(pod, &name(number)).display().to_string();
        let call = Request::Mount { dir, options: serde_json::from_value(options).unwrap() };
        let (socket, answer) = (socket.clone(), answer.clone());
        thread::spawn(move || {
            let mut stream = UnixStream::connect(socket).unwrap();
            stream.write_all(&frame::encode(&call).unwrap()).unwrap();
            // The agent and whoever listened are gone when the test has failed.
            if let Ok(reply) = frame::read(&mut stream) {
                let _gone = answer.send(reply);
            }
        });
    }
}

/// How many steps of the agent wait for storage, each in a thread.
fn steps(agent: u32) -> usize {
    let threads = fs::read_dir(format!("/proc/{agent}/task")).unwrap().flatten();
    let names = threads.filter_map(|thread| fs::read_to_string(thread.path().join("comm")).ok());
    names.filter(|name| name.trim() == "volume-step").count()
}

/// How many connections to the API server there are on this machine.
fn connections(world: &World) -> usize {
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let (remote, established) = (format!(":{:04X}", world.server.port()), Some("01"));
    let is_one = |line: &&str| {
        let mut fields = line.split_whitespace().skip(2);
        fields.next().is_some_and(|it| it.ends_with(&remote)) && fields.next() == established
    };
    table.lines().filter(is_one).count()
}

/// A call to it lasts for as long as a step may take.
#[test]
fn calls_to_storage_that_hangs_leave_room_for_others() {
    let mut world = World::new();
    let server = BlockServer::start(&world);
    server.image("back", 64);
    // Images are looked for in a directory whose server can be stopped.
    let disk = fuse_file(&world, &server);
    world.storage("dead", disk.parent().unwrap());
    make_volumes(&world);
    world.image("well", 64);
    world.volume("pv-well", "well", &json!({}));
    world.image("one", 64);
    csi::make_volume(&world);
    let (many, flex, csi) = (world.pod("a"), world.pod("b"), world.pod("c"));
    world.wait_until("the storage to be held", |world| {
        world.read(&["storagecluster", "dead"])["metadata"]["finalizers"].is_array()
    });
    let before = world.leftovers();
    let worker = processes(&world.path("fuse").display().to_string(), &["\0work\0"]);
    let stopped = Stopped::new(worker[0]);

    let agent = world.agent.process().id();
    let (answer, answers) = mpsc::channel();
    mount_each(&world, &many, 0..BEGUN, &answer);
    let most = Cell::new(0);
    world.wait_until("all of them to hang", |world| {
        most.set(most.get().max(connections(world)));
        steps(agent) >= BEGUN
    });
    assert!(most.get() <= CONNECTIONS, "{} connections to the API server", most.get());
    mount_each(&world, &many, BEGUN..CALLS, &answer);
    for _ in BEGUN..CALLS {
        let refused = answers.recv_timeout(DEADLINE).unwrap();
        assert_eq!(refused.status, Status::Failure);
        let sentence = "no more calls for storage \"dead\" or this volume are begun";
        assert!(refused.message.starts_with(sentence), "{refused:?}");
    }
    assert_eq!(world.mount(&flex, "pv-well", "well"), Ok(()));
    csi::publish(&world, &csi).unwrap();
    assert!(is_mounted(&world.dir_of(&flex, "pv-well")));
    csi::unpublish(&world, &csi).unwrap();
    assert_eq!(world.unmount(&flex, "pv-well"), Ok(()));
    assert_eq!(answers.try_recv(), Err(TryRecvError::Empty), "all others wait yet");

    // It answers again, and everybody is told that there is no such image.
    drop(stopped);
    for _ in 0..BEGUN {
        let failed = answers.recv_timeout(DEADLINE).unwrap();
        assert_eq!(failed.status, Status::Failure, "{failed:?}");
    }
    world.wait_until("nothing to be left", |world| world.leftovers() == before);
}
