//! The block server as a process, with our own clients, those of others, and such as are no clients.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    process::Command,
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use common::{BlockServer, MIB};
use wharf_block::nbd::{
    Export, ImageName,
    client::{Connection, Control, Error, Identity, Piece},
    control::{Code, Failure, LIST_PAGE},
};

fn code(error: Error) -> Code {
    match error {
        Error::Refused(Failure { code, .. }) => code,
        other => panic!("{other:?} is no refusal"),
    }
}

fn is_cut(outcome: &Result<(), Error>) -> bool {
    matches!(outcome, Err(Error::Io(_)))
}

#[test]
fn what_is_written_is_read_again_and_holes_read_as_zeros() {
    let server = BlockServer::start();
    let image = server.create("one", 8 * MIB);
    let mut client = server.open(&image, 1, "a").unwrap();
    assert_eq!((client.size, client.read_only), (8 * MIB, false));
    // Longer than a piece of the server, and at no even place.
    let bytes: Vec<u8> = (0..3 * MIB + 17).map(|n| (n % 251) as u8).collect();
    client.write(1001, &bytes, false).unwrap();
    client.write(0, &[9; 1001], true).unwrap();
    client.flush().unwrap();
    let mut back = vec![0; bytes.len()];
    client.read(1001, &mut back).unwrap();
    assert!(back == bytes);
    client.zero(4096, 8192, false).unwrap();
    client.zero(16384, 4096, true).unwrap();
    client.trim(MIB, 4096).unwrap();
    let mut holes = vec![1; 8192];
    client.read(4096, &mut holes).unwrap();
    assert!(holes.iter().all(|byte| *byte == 0));
    client.read(16384, &mut holes[..4096]).unwrap();
    assert!(holes.iter().all(|byte| *byte == 0));
    let file = fs::read(server.image_file(&image)).unwrap();
    assert_eq!((file[0], file[1001 + 3000]), (9, bytes[3000]));
    client.close();
}

#[test]
fn many_are_asked_for_at_once_and_each_has_its_own_answer() {
    let server = BlockServer::start();
    let size = 64 * MIB;
    let image = server.create("one", size);
    let mut client = server.open(&image, 1, "a").unwrap();
    // More than all buffers on the way can hold, in both directions; one of them is bad.
    let (large, larger) = (8 * MIB as usize, 16 * MIB as usize);
    let places = [
        (0, 512),
        (4096, 4096),
        (MIB, larger),
        (size - 1, 512),
        (20 * MIB + 7, 70_000),
        (32 * MIB, large),
        (50 * MIB, 4096),
        (51 * MIB, 1),
    ];
    let written: Vec<Vec<u8>> =
        (1..).zip(&places).map(|(stamp, (_, length))| vec![stamp; *length]).collect();
    let mut pieces: Vec<Piece<&[u8]>> = places
        .iter()
        .zip(&written)
        .map(|((offset, _), bytes)| Piece::new(*offset, bytes.as_slice()))
        .collect();
    client.write_each(&mut pieces, false).unwrap();
    let errors: Vec<u32> = pieces.iter().map(|piece| piece.error).collect();
    assert_eq!(errors, [0, 0, 0, 28, 0, 0, 0, 0]);

    let mut back: Vec<Vec<u8>> = places.iter().map(|(_, length)| vec![0; *length]).collect();
    let mut pieces: Vec<Piece<&mut [u8]>> = places
        .iter()
        .zip(&mut back)
        .map(|((offset, _), bytes)| Piece::new(*offset, bytes.as_mut_slice()))
        .collect();
    client.read_each(&mut pieces).unwrap();
    let errors: Vec<u32> = pieces.iter().map(|piece| piece.error).collect();
    assert_eq!(errors, [0, 0, 0, 22, 0, 0, 0, 0]);
    for (nth, (back, written)) in back.iter().zip(&written).enumerate() {
        assert!(nth == 3 || back == written, "piece {nth}");
    }
    client.flush().unwrap();
}

#[test]
fn requests_outside_the_image_are_refused_and_the_connection_goes_on() {
    let server = BlockServer::start();
    let image = server.create("one", MIB);
    let mut client = server.open(&image, 1, "a").unwrap();
    let mut buffer = [0; 512];
    for offset in [MIB - 511, MIB, u64::MAX - 100] {
        assert!(matches!(client.read(offset, &mut buffer), Err(Error::Remote(22))), "{offset}");
        assert!(matches!(client.write(offset, &buffer, false), Err(Error::Remote(28))), "{offset}");
        assert!(matches!(client.zero(offset, 512, false), Err(Error::Remote(22))), "{offset}");
    }
    client.write(MIB - 512, &buffer, false).unwrap();
    assert_eq!(fs::metadata(server.image_file(&image)).unwrap().len(), MIB);
}

#[test]
fn a_higher_generation_ends_the_lower_for_good_also_over_a_kill_of_the_server() {
    let mut server = BlockServer::start();
    let image = server.create("one", MIB);
    let mut old = server.open(&image, 3, "a").unwrap();
    old.write(0, &[3; 4096], false).unwrap();
    let mut new = server.open(&image, 5, "b").unwrap();
    assert!(is_cut(&old.write(0, &[4; 4096], false)));
    let refused = server.open(&image, 4, "a").unwrap_err();
    assert!(refused.is_fenced(), "{refused:?}");
    let mut block = [0; 4096];
    new.read(0, &mut block).unwrap();
    assert_eq!(block, [3; 4096]);

    server.kill();
    server.run();
    assert_eq!(server.control().epoch(&image).unwrap().epoch, 5);
    assert!(server.open(&image, 4, "a").unwrap_err().is_fenced());
    server.open(&image, 5, "b").unwrap();
}

/// The disk of a server was lost, or somebody has deleted an image. Its holders can be given up all the same,
/// and come into no image that is made later under its name.
#[test]
fn a_fence_holds_also_for_an_image_that_is_gone() {
    let server = BlockServer::start();
    let image = ImageName::new("one").unwrap();
    let fenced = server.control().fence(&image, 5).unwrap();
    assert_eq!((fenced.epoch, fenced.size, fenced.owner), (5, 0, None));
    assert_eq!(server.control().fence(&image, 3).unwrap().epoch, 5, "it never falls");
    assert_eq!(code(server.control().epoch(&image).unwrap_err()), Code::Missing);
    server.create("one", MIB);
    assert_eq!(code(server.open(&image, 4, "a").unwrap_err()), Code::Fenced);
    server.open(&image, 5, "b").unwrap();
}

#[test]
fn a_fence_shuts_out_those_below_it_and_nobody_else() {
    let server = BlockServer::start();
    let image = server.create("one", MIB);
    let other = server.create("two", MIB);
    let mut client = server.open(&image, 3, "a").unwrap();
    let mut bystander = server.open(&other, 1, "a").unwrap();
    assert_eq!(server.control().fence(&image, 2).unwrap().epoch, 3, "it never falls");
    assert_eq!(server.control().fence(&image, 3).unwrap().epoch, 3);
    client.flush().unwrap();
    let info = server.control().fence(&image, 4).unwrap();
    assert_eq!((info.epoch, info.clients), (4, 0));
    assert!(is_cut(&client.flush()));
    assert!(server.open(&image, 3, "a").unwrap_err().is_fenced());
    bystander.flush().unwrap();
}

#[test]
fn a_new_session_or_the_same_slot_replaces_a_writer_and_readers_stay() {
    let server = BlockServer::start();
    let image = server.create("one", MIB);
    let open = |session: &str, slot, read_only| {
        let identity = Identity { session: session.to_owned(), slot, read_only };
        let export = Export { image: image.clone(), generation: 1 };
        Connection::open(&server.address, &export, &identity, Duration::from_secs(20)).unwrap()
    };
    let mut readers = [open("r", 0, true), open("r", 0, true), open("s", 0, true)];
    let (mut first, mut second) = (open("a", 0, false), open("a", 1, false));
    first.flush().unwrap();
    second.flush().unwrap();
    let mut again = open("a", 0, false);
    assert!(is_cut(&first.flush()));
    second.flush().unwrap();
    let mut other = open("b", 0, false);
    assert!(is_cut(&second.flush()));
    assert!(is_cut(&again.flush()));
    other.flush().unwrap();
    for reader in &mut readers {
        assert!(matches!(reader.write(0, &[1; 512], false), Err(Error::Remote(1))));
        assert!(matches!(reader.zero(0, 512, false), Err(Error::Remote(1))));
        reader.read(0, &mut [0; 512]).unwrap();
    }
}

/// One of two who want the image. Writes until it is cut, or has written enough.
fn race(server: &BlockServer, image: &ImageName, generation: u64, higher_is_in: &AtomicBool) {
    let stamp = vec![u8::try_from(generation % 251).unwrap(); 4096];
    let is_higher = generation % 2 == 1;
    let mut client = match server.open(image, generation, &format!("session-{generation}")) {
        Ok(client) => client,
        // Refused, or cut right after it was let in.
        Err(error) if !is_higher && (error.is_fenced() || matches!(error, Error::Io(_))) => return,
        Err(error) => panic!("{error:?}"),
    };
    if is_higher {
        higher_is_in.store(true, Ordering::SeqCst);
    }
    for _ in 0..10 {
        let late = higher_is_in.load(Ordering::SeqCst);
        let mut back = vec![0; stamp.len()];
        let outcome = client.write(0, &stamp, false).and_then(|()| client.read(0, &mut back));
        match outcome {
            Ok(()) => {
                assert!(
                    is_higher || !late,
                    "a write of generation {generation} came after a higher"
                );
                assert!(back == stamp, "generation {generation} read another's bytes");
            }
            Err(Error::Io(_)) if !is_higher => return,
            Err(error) => panic!("{error:?}"),
        }
    }
}

#[test]
fn of_two_that_race_only_the_higher_generation_writes_last_200_times() {
    let server = BlockServer::start();
    let image = server.create("one", MIB);
    for round in 1..=200 {
        let together = Barrier::new(2);
        let higher_is_in = AtomicBool::new(false);
        thread::scope(|scope| {
            for generation in [2 * round, 2 * round + 1] {
                let (server, image) = (&server, &image);
                let (together, higher_is_in) = (&together, &higher_is_in);
                scope.spawn(move || {
                    together.wait();
                    race(server, image, generation, higher_is_in);
                });
            }
        });
        let last = fs::read(server.image_file(&image)).unwrap();
        assert_eq!(u64::from(last[4095]), (2 * round + 1) % 251, "round {round}");
    }
}

#[test]
fn nothing_of_a_writer_lands_after_another_was_let_in() {
    let server = BlockServer::start();
    let image = server.create("one", 64 * MIB);
    let address = &server;
    thread::scope(|scope| {
        // Long writes, so that one is under way whenever the cut comes.
        let mut clients: Vec<Connection> = (0..4)
            .map(|slot| {
                let identity = Identity { session: "old".to_owned(), slot, read_only: false };
                let export = Export { image: image.clone(), generation: 1 };
                Connection::open(&address.address, &export, &identity, Duration::from_secs(20))
                    .unwrap()
            })
            .collect();
        let writers: Vec<_> = clients
            .drain(..)
            .map(|mut client| {
                scope.spawn(move || {
                    for turn in 1..=u8::MAX {
                        if client.write(0, &vec![turn; 16 * MIB as usize], false).is_err() {
                            return turn;
                        }
                    }
                    panic!("nobody cut the writer");
                })
            })
            .collect();
        common::wait_for("a first write", Duration::from_secs(20), || {
            fs::read(server.image_file(&image)).unwrap()[0] > 0
        });
        let mut new = server.open(&image, 2, "new").unwrap();
        let before = fs::read(server.image_file(&image)).unwrap();
        for writer in writers {
            assert!(writer.join().unwrap() > 0);
        }
        let after = fs::read(server.image_file(&image)).unwrap();
        assert!(before == after, "bytes of the old writer came after the new one");
        new.flush().unwrap();
    });
}

#[test]
fn images_are_made_listed_grown_and_deleted() {
    let server = BlockServer::start();
    let mut control = server.control();
    let one = ImageName::new("one").unwrap();
    assert_eq!(code(control.epoch(&one).unwrap_err()), Code::Missing);
    for bad in [0, 4095, 4097, u64::MAX, 1 << 60] {
        assert_eq!(code(control.create(&one, bad).unwrap_err()), Code::Invalid, "{bad}");
    }
    let made = control.create(&one, MIB).unwrap();
    assert_eq!((made.size, made.allocated, made.epoch, made.clients), (MIB, 0, 0, 0));
    assert_eq!(control.create(&one, MIB).unwrap(), made, "it is as good when it is there");
    assert_eq!(code(control.create(&one, 2 * MIB).unwrap_err()), Code::Exists);

    let mut client = server.open(&one, 4, "a").unwrap();
    assert_eq!(code(control.grow(&one, 2 * MIB, 3).unwrap_err()), Code::Fenced);
    assert_eq!(code(control.grow(&one, 4096, 4).unwrap_err()), Code::Invalid, "smaller");
    assert_eq!(control.grow(&one, 2 * MIB, 4).unwrap().size, 2 * MIB);
    client.write(2 * MIB - 512, &[1; 512], false).unwrap();

    assert_eq!(code(control.delete(&one, 3).unwrap_err()), Code::Fenced);
    control.delete(&one, 4).unwrap();
    assert!(is_cut(&client.flush()));
    assert_eq!(code(control.delete(&one, 4).unwrap_err()), Code::Missing);
    assert_eq!(code(server.open(&one, 9, "a").unwrap_err()), Code::Missing);
    assert_eq!(control.create(&one, MIB).unwrap().epoch, 5, "an old client stays shut out");
    assert!(server.open(&one, 4, "a").unwrap_err().is_fenced());

    for number in 0..LIST_PAGE + 3 {
        control.create(&ImageName::new(&format!("x{number:04}")).unwrap(), 4096).unwrap();
    }
    let listed = control.list().unwrap();
    assert_eq!(listed.len(), LIST_PAGE + 4);
    assert!(listed.is_sorted_by_key(|info| info.image.clone()));
}

#[test]
fn an_image_has_one_owner_as_long_as_it_is_there() {
    let mut server = BlockServer::start();
    let one = server.create("one", MIB);
    assert_eq!(server.control().epoch(&one).unwrap().owner, None);
    server.open(&one, 1, "of a time without owners").unwrap().close();
    let owner = |server: &BlockServer, wanted: &str| {
        server.control().own(&one, wanted).unwrap().owner.unwrap()
    };
    assert_eq!(owner(&server, "pv-1"), "pv-1", "nobody had it");
    assert_eq!(owner(&server, "pv-2"), "pv-1");
    server.kill();
    server.run();
    assert_eq!(owner(&server, "pv-2"), "pv-1", "a kill changes nothing");
    for bad in ["", "two\nlines", "a b", &"x".repeat(254)] {
        assert_eq!(code(server.control().own(&one, bad).unwrap_err()), Code::Invalid, "{bad:?}");
    }
    let none = ImageName::new("none").unwrap();
    assert_eq!(code(server.control().own(&none, "pv-1").unwrap_err()), Code::Missing);

    server.control().delete(&one, 1).unwrap();
    server.create("one", MIB);
    assert_eq!(owner(&server, "pv-2"), "pv-2", "it is another image");
}

#[test]
fn two_servers_do_not_share_a_directory() {
    let server = BlockServer::start();
    let second = Command::new(env!("CARGO_BIN_EXE_wharf-block"))
        .arg("serve")
        .args([server.dir.path().as_os_str(), "127.0.0.1:0".as_ref()])
        .output()
        .unwrap();
    assert!(!second.status.success());
    assert!(String::from_utf8_lossy(&second.stderr).contains("another block server"));
}

#[test]
fn any_client_of_the_protocol_reads_and_none_writes_or_shuts_others_out() {
    let needs = [("qemu-img", "qemu-utils"), ("nbdinfo", "libnbd-bin")];
    wharf_testbed::debian::ensure("the tests of the block server", &needs).unwrap();
    let server = BlockServer::start();
    let image = server.create("one", 4 * MIB);
    let mut writer = server.open(&image, 2, "a").unwrap();
    let bytes: Vec<u8> = (0..4 * MIB).map(|n| (n / 7 % 253) as u8).collect();
    writer.write(0, &bytes, false).unwrap();
    let url = |export: &str| format!("nbd://{}/{export}", server.address);
    let run = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let copy = server.dir.path().join("copy");
    let copy = copy.to_str().unwrap();
    let arguments = ["convert", "-f", "raw", "-O", "raw", &url("one@2"), copy];
    assert!(run("qemu-img", &arguments).0);
    assert!(fs::read(copy).unwrap() == bytes);
    assert_eq!(run("nbdinfo", &["--size", &url("one@99")]), (true, format!("{}\n", 4 * MIB)));
    assert!(!run("nbdinfo", &["--size", &url("one@1")]).0, "an older generation");
    assert!(!run("nbdinfo", &["--size", &url("two@1")]).0, "no such image");
    assert!(run("nbdinfo", &[&url("one@2")]).1.contains("is_read_only: true"));
    writer.flush().unwrap();
    assert_eq!(server.control().epoch(&image).unwrap().epoch, 2);
}

/// Sends bytes and reads until the server hangs up.
fn throw(server: &BlockServer, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // The server may have hung up in the middle of it.
    let _hung_up =
        stream.write_all(bytes).and_then(|()| stream.shutdown(std::net::Shutdown::Write));
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        Err(error) => panic!("the server did not hang up: {error}"),
    }
    answer
}

fn option(number: u32, length: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &number.to_be_bytes()[..], &length.to_be_bytes(), data].concat()
}

const FLAGS: [u8; 4] = [0, 0, 0, 3];

#[test]
fn garbage_and_lengths_beyond_all_bounds_harm_nobody() {
    let server = BlockServer::start();
    let image = server.create("one", MIB);
    let mut honest = server.open(&image, 1, "a").unwrap();
    let name = [&5u32.to_be_bytes()[..], b"one@1", &[0, 0]].concat();
    let go = [&FLAGS[..], &option(7, 11, &name)].concat();
    let request = |command: u16, length: u32| {
        [
            &0x2560_9513u32.to_be_bytes()[..],
            &[0, 0],
            &command.to_be_bytes(),
            &[0; 16],
            &length.to_be_bytes(),
        ]
        .concat()
    };
    let json = br#"{"op":"create","image":"../../etc/x","size":4096}"#;
    let cases: Vec<Vec<u8>> = vec![
        vec![],
        vec![0xff; 4096],
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        [&FLAGS[..], &[7; 1000]].concat(),
        [&FLAGS[..], &option(7, u32::MAX, b"")].concat(),
        [&FLAGS[..], &option(7, 4, &u32::MAX.to_be_bytes())].concat(),
        [&FLAGS[..], &option(1, 3, b"../")].concat(),
        [&FLAGS[..], &option(0x5748_4152, json.len() as u32, json)].concat(),
        [&FLAGS[..], &option(0x5748_4152, 3, b"{{{")].concat(),
        [&go[..], &[1; 28]].concat(),
        [&go[..], &request(0, u32::MAX)].concat(),
        [&go[..], &request(1, u32::MAX)].concat(),
        [&go[..], &request(1, 4096)].concat(),
        [&go[..], &request(77, 0)].concat(),
    ];
    for case in cases {
        let answer = throw(&server, &case);
        assert!(answer.starts_with(b"NBDMAGICIHAVEOPT"), "{case:?}");
        honest.flush().unwrap();
    }
    let made: Vec<_> = fs::read_dir(server.dir.path()).unwrap().collect();
    assert_eq!(made.len(), 3, "the image, its epoch and the lock: {made:?}");
}

#[test]
fn a_handshake_that_drips_is_ended() {
    let server = BlockServer::start();
    let mut stream = TcpStream::connect(&server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let begun = Instant::now();
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).unwrap();
    stream.write_all(&FLAGS).unwrap();
    let slow = option(7, 1000, &[b'x'; 1000]);
    for byte in slow {
        if stream.write_all(&[byte]).is_err() {
            break;
        }
        match stream.read(&mut [0; 1]) {
            Ok(0) => break,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => break,
            Ok(_) => panic!("an answer to half an option"),
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "the server waits for ever");
    }
    assert!(begun.elapsed() > Duration::from_secs(5), "an honest slow client is given time");
}

/// A server that sends these bytes and then reads on.
fn impostor(bytes: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&bytes).unwrap();
        let mut sink = [0; 4096];
        while stream.read(&mut sink).is_ok_and(|count| count > 0) {}
    });
    address
}

#[test]
fn a_client_is_not_harmed_by_what_is_no_server() {
    let greeting = b"NBDMAGICIHAVEOPT\0\x03".to_vec();
    let reply = |option: u32, kind: u32, length: u32, data: &[u8]| {
        [
            &0x0003_e889_0455_65a9u64.to_be_bytes()[..],
            &option.to_be_bytes(),
            &kind.to_be_bytes(),
            &length.to_be_bytes(),
            data,
        ]
        .concat()
    };
    let ours = 0x5748_4152;
    let joined = br#"{"answer":"joined","boot":"x"}"#;
    let join = [&greeting[..], &reply(ours, ours, joined.len() as u32, joined)].concat();
    let cases = [
        vec![],
        vec![0xff; 4096],
        b"HTTP/1.1 400 Bad Request\r\n\r\n and more text".to_vec(),
        b"NBDMAGICIHAVEOPT\0\0".to_vec(),
        [&greeting[..], &[9; 200]].concat(),
        [&greeting[..], &reply(ours, ours, u32::MAX, b"")].concat(),
        [&greeting[..], &reply(ours, ours, 2, b"[]")].concat(),
        [&join[..], &reply(7, 1, 0, b"")].concat(),
        [&join[..], &reply(7, 3, 1, b"x").repeat(100)].concat(),
        [&join[..], &reply(7, 0x8000_0001, 2, b"no")].concat(),
    ];
    for case in cases {
        let address = impostor(case.clone());
        let image = ImageName::new("one").unwrap();
        let export = Export { image, generation: 1 };
        let identity = Identity { session: "a".to_owned(), slot: 0, read_only: false };
        let begun = Instant::now();
        let opened = Connection::open(&address, &export, &identity, Duration::from_millis(500));
        assert!(opened.is_err(), "{case:?}");
        assert!(begun.elapsed() < Duration::from_secs(5), "{case:?}");
    }
    let silent = impostor(Vec::new());
    assert!(Control::connect(&silent, Duration::from_millis(200)).is_err());
}
