# Looks at the cluster's network from inside a pod. Arguments: the cluster's domain, and how many
# pods serve. What does not work at once is tried again; the log says what never worked.

domain=$1
pods=$2
tries=400

attempt() {
    what=$1
    shift
    until out=$("$@" 2>&1); do
        tries=$((tries - 1))
        if [ $tries -le 0 ]; then
            echo "$what does not work: $out"
            exit 1
        fi
        sleep 0.3
    done
}

# Asks again soon: while DNS starts, a question is lost and its answer waited for in vain.
look_up() {
    nslookup -timeout=1 "$1"
}

# The addresses that a name of ours has.
addresses() {
    # The first address is that of the DNS server itself.
    look_up "$1.kube-system.svc.$domain" | sed '1,/^Name:/d' |
        sed -n 's/^Address[^:]*: *\([0-9.]*\).*$/\1/p' | sort -u
}

all_there() {
    there=$(addresses wharf-verify-pods | wc -l)
    [ "$there" -eq "$pods" ] || { echo "$there of $pods pods have an address"; return 1; }
}

# Not by wget: it looks up even addresses by a way that a static program does not have.
fetch() {
    answer=$(printf 'GET /index.html HTTP/1.0\r\n\r\n' | nc -w 3 "$1" "$2") || return 1
    case $answer in
        *" 200 "*) ;;
        *) echo "it answers: $answer"; return 1 ;;
    esac
}

fetch_service() {
    service=$(addresses wharf-verify)
    fetch "${service:-nowhere}" 80
}

attempt "DNS (kubernetes.default.svc.$domain)" look_up "kubernetes.default.svc.$domain"
attempt "DNS (the pods that serve)" all_there
for address in $(addresses wharf-verify-pods); do
    attempt "the way to pod $address" fetch "$address" 8080
done
attempt "the Service wharf-verify" fetch_service
echo "DNS, $pods pods and a Service were reached"
