# Looks at the cluster's network from inside a pod. Arguments: the cluster's domain, and how many
# pods serve. What does not work at once is tried again; the log says what never worked.

domain=$1
pods=$2
tries=100

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

addresses() {
    # The first address is that of the DNS server itself.
    nslookup "wharf-verify-pods.kube-system.svc.$domain" | sed '1,/^Name:/d' |
        sed -n 's/^Address[^:]*: *\([0-9.]*\).*$/\1/p' | sort -u
}

all_there() {
    there=$(addresses | wc -l)
    [ "$there" -eq "$pods" ] || { echo "$there of $pods pods have an address"; return 1; }
}

fetch() {
    wget -q -T 3 -O - "http://$1/index.html"
}

attempt "DNS (kubernetes.default.svc.$domain)" nslookup "kubernetes.default.svc.$domain"
attempt "DNS (the pods that serve)" all_there
for address in $(addresses); do
    attempt "the way to pod $address" fetch "$address:8080"
done
attempt "the Service wharf-verify" fetch "wharf-verify.kube-system.svc.$domain"
echo "DNS, $pods pods and a Service were reached"
