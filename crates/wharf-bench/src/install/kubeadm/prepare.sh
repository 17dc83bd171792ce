# What kubeadm expects of a machine before its first command: a container runtime, a kubelet that
# waits to be configured, programs on the PATH, images, and a pod network. Arguments: the directory
# of images, the names that kubeadm has for the images of CoreDNS and of the sandbox, the network of
# Services, this host's pod network, and pod network and address of each other host in turn.
set -eu
images=$1 coredns=$2 pause=$3 services=$4 own=$5
shift 5
bundle=/usr/share/wharf/bundle
mkdir -p /opt/cni/bin /etc/cni/net.d /etc/containerd /etc/kubernetes
ln -sf $bundle/bin/* /usr/local/bin/
ln -sf $bundle/cni/* /opt/cni/bin/
# CoreDNS refuses to ask itself, and there is no other name server: nobody answers there.
echo 'nameserver 192.0.2.53' >/etc/kubernetes/resolv.conf
cat >/etc/containerd/config.toml <<END
version = 3
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "$pause"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/opt/cni/bin"]
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      SystemdCgroup = false
END
cat >/etc/systemd/system/containerd.service <<'END'
[Service]
Type=notify
ExecStart=/usr/local/bin/containerd
KillMode=process
Delegate=yes
LimitNOFILE=1048576
[Install]
WantedBy=multi-user.target
END
# As kubeadm's own package has it.
cat >/etc/systemd/system/kubelet.service <<'END'
[Unit]
After=containerd.service
StartLimitIntervalSec=0
[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
ExecStart=/usr/local/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS
Restart=always
RestartSec=10
[Install]
WantedBy=multi-user.target
END
cat >/etc/cni/net.d/10-bridge.conflist <<END
{
  "cniVersion": "1.0.0",
  "name": "bench",
  "plugins": [{
    "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
    "ipam": {
      "type": "host-local", "ranges": [[{ "subnet": "$own" }]], "routes": [{ "dst": "0.0.0.0/0" }]
    }
  }, { "type": "portmap", "backend": "nftables", "capabilities": { "portMappings": true } }]
}
END
while [ $# -gt 0 ]; do
    ip route replace "$1" via "$2"
    shift 2
done
# A machine without a default route must still find the way to a Service.
ip route replace "$services" dev host0
systemctl daemon-reload
systemctl enable --quiet kubelet
systemctl enable --quiet --now containerd
import() {
    ctr -n k8s.io images import --local "$1" 2>/dev/null
}
for archive in "$images"/*.tar; do
    import "$archive" >/dev/null
done
for image in coredns:"$coredns" pause:"$pause"; do
    name=$(import "$bundle/images/${image%%:*}.tar" | grep -o "wharf.dev/${image%%:*}:[^ ]*" | head -n 1)
    ctr -n k8s.io images tag --force "$name" "${image#*:}" >/dev/null 2>&1
done
