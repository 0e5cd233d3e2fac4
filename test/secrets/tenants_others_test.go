// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package secrets_test

import (
	"context"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	bridgev1 "github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/hosts"
	"github.com/hyperfleet/hyperfleet/hosts/linux"
	"github.com/hyperfleet/hyperfleet/hosts/mac"
	simulator "github.com/hyperfleet/hyperfleet/sim/hypershift"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

const (
	hostUser = "hyperfleet"
	// ownToken is in the tenant's own kubeconfig, which leads to its own server.
	ownToken = "a-token-of-the-tenant"
	// ownKeys is the tenant's Secret with all that its objects name.
	ownKeys = "keys"
	// theirName is what the neighbour's objects are called.
	theirName = "theirs"
)

// furnishOthers makes what the neighbour has of the other areas, what nobody may read, and what
// the tenant has.
func (h *hostile) furnishOthers() {
	keys := []string{"pat", "secret", "key", "kubeconfig", bridgev1.PullSecretKey, bridgev1.SSHKeySecretKey, "userdata"}
	secret := func(namespace, name, value string) *corev1.Secret {
		data := map[string]string{}
		for _, key := range keys {
			data[key] = value
		}

		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, StringData: data}
	}

	system := secret("kube-system", private, privateCanary)
	h.Create(system)
	h.t.Cleanup(func() { _ = h.Client.Delete(context.Background(), system) })
	h.Create(secret(h.Namespace, private, privateCanary))

	pool := h.nodePool()
	pool.ObjectMeta = metav1.ObjectMeta{Namespace: h.neighbour, Name: theirName}
	pool.Spec.DNS, pool.Spec.Drain, pool.Spec.UserDataSecretRef = nil, nil, nil

	cluster := dpuCluster(h.neighbour, theirName)

	for _, object := range []client.Object{
		secret(h.neighbour, private, privateCanary), secret(h.neighbour, "host", hostCanary), pool, cluster,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: h.neighbour, Name: theirName}, Data: map[string]string{"a": "b"}},
	} {
		h.Create(object)
		h.theirs = append(h.theirs, object)
	}

	if err := h.Client.Status().Patch(h.t.Context(), cluster, client.RawPatch(types.MergePatchType, []byte(dpuReady))); err != nil {
		h.t.Fatal(err)
	}

	h.Create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: h.team, Name: "github"}, StringData: map[string]string{"pat": "ghp_own"}})
	h.Create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: h.team, Name: ownKeys}, StringData: map[string]string{
		"key": h.own.key, "kubeconfig": h.own.kubeconfig(), "userdata": "#cloud-config\n", "pat": "ghp_own", "secret": "own",
		bridgev1.SSHKeySecretKey: "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f admin",
		bridgev1.PullSecretKey: fmt.Sprintf(`{"auths":{%q:{"auth":%q},%q:{"auth":%q}}}`,
			strings.TrimPrefix(images.URL, "https://"), base64.StdEncoding.EncodeToString([]byte("user:password")),
			strings.TrimPrefix(h.own.web.URL, "https://"), base64.StdEncoding.EncodeToString([]byte("own:"+ownToken))),
		infrav1.ScalewayAccessKey: "SCW00000000000000000", infrav1.ScalewaySecretKey: "11111111-2222-3333-4444-555555555555",
		infrav1.ScalewayProjectID: "11111111-2222-3333-4444-666666666666", infrav1.ScalewayAPIURL: h.own.plain.URL,
	}})
}

// kubeconfig leads to the tenant's server.
func (o *ownServers) kubeconfig() string {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: o.web.Certificate().Raw})

	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"a","contexts":[{"name":"a","context":{"cluster":"a","user":"a"}}],
"users":[{"name":"a","user":{"token":%q}}],"clusters":[{"name":"a","cluster":{"server":%q,"certificate-authority-data":%q}}]}`,
		ownToken, o.web.URL, base64.StdEncoding.EncodeToString(ca))
}

// startOthers runs the areas of hosts and of the bridge, which h.Start knows nothing of, and
// HyperShift.
func (h *hostile) startOthers() {
	sim, err := simulator.Start(simulator.Options{Config: h.Env.Config, Supported: []string{"4.16", "4.15"}})
	if err != nil {
		h.t.Fatal(err)
	}

	h.t.Cleanup(func() { _ = sim.Close() })

	settings := config.Default().Hosts
	settings.ProbeInterval, settings.RetryBase, settings.RetryCap = 0, 50*time.Millisecond, time.Second
	settings.Linux = config.LinuxHosts{
		AgentFile: h.file("agent"), NodeExporterFile: h.file("exporter"), MaxPods: 4, VMCIDR: "192.168.122.0/24",
	}

	area := &hosts.Area{Config: settings, Registry: prometheus.NewRegistry(), Clock: clock.RealClock{}}
	h.manage(area.Setup, h.team, h.neighbour, h.Namespace)

	cfg := config.Default().Bridge
	cfg.AddressRanges = []string{"10.0.0.0/8"}
	bridges := &bridge.Area{
		Config: cfg, Registry: prometheus.NewRegistry(), Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
		RegistryTransport: images.Client().Transport,
	}
	h.manage(bridges.Setup)
}

func (h *hostile) file(name string) string {
	path := filepath.Join(h.t.TempDir(), name)
	if err := os.WriteFile(path, []byte(name), 0o600); err != nil {
		h.t.Fatal(err)
	}

	return path
}

// manage runs an area as its process would, in these namespaces, or in all.
func (h *hostile) manage(setup func(context.Context, ctrl.Manager) error, namespaces ...string) {
	way := rest.CopyConfig(h.Env.Config)
	way.QPS = -1
	way.Wrap(h.asked.watch)

	options := ctrl.Options{
		Scheme: h.Env.Scheme, Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: ctrlconfig.Controller{SkipNameValidation: new(true)},
	}
	if len(namespaces) > 0 {
		options.Cache.DefaultNamespaces = map[string]cache.Config{}
		for _, name := range namespaces {
			options.Cache.DefaultNamespaces[name] = cache.Config{}
		}
	}

	mgr, err := ctrl.NewManager(way, options)
	if err != nil {
		h.t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	if err := setup(ctx, mgr); err != nil {
		cancel()
		h.t.Fatal(err)
	}

	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()

	h.t.Cleanup(func() {
		cancel()

		if err := <-done; err != nil {
			h.t.Error(err)
		}
	})
}

// dpuReady is the status of a DPUCluster that a bridge can serve.
const dpuReady = `{"status":{"phase":"Ready","nodesCount":0}}`

func dpuCluster(namespace, name string) *unstructured.Unstructured {
	out := hypershift.NewObject(hypershift.DPUClusterKind())
	out.SetNamespace(namespace)
	out.SetName(name)
	out.Object["spec"] = map[string]any{"type": "static", "maxNodes": int64(10)}

	return out
}

// ref names a Secret of the tenant's, or one that is there under that name in another namespace.
func (h *hostile) ref(key string) infrav1.LocalSecretKeySelector {
	return infrav1.LocalSecretKeySelector{Name: h.secretName(), Key: key}
}

func (h *hostile) secretName() string {
	return pick(h, ownKeys, ownKeys, ownKeys, private, "closed", "shared", "host", h.neighbour+"/"+private, "../"+private)
}

func (h *hostile) drain() *infrav1.NodeDrain {
	return pick(h, nil, &infrav1.NodeDrain{KubeconfigSecretRef: h.ref("kubeconfig"), Timeout: metav1.Duration{Duration: time.Second}})
}

// other is anything of the other areas' kinds, and of those that they read.
func (h *hostile) other() client.Object {
	switch h.dice.IntN(14) {
	case 0:
		return &corev1.Secret{ObjectMeta: h.name("secret"), StringData: map[string]string{
			"kubeconfig": pick(h, h.own.kubeconfig(), "{"), "key": pick(h, h.own.key, "no key"), "pat": "x",
		}}
	case 1:
		return &corev1.ConfigMap{ObjectMeta: h.name("map"), Data: map[string]string{
			pick(h, "target.ign", "live.ign"): `{"ignition":{"version":"3.4.0","config":{"merge":[{"source":"` + h.ears[0].url + `"}]}}}`,
		}}
	case 2:
		return h.hostFleet()
	case 3, 4:
		return h.linux()
	case 5:
		return h.mac()
	case 6:
		return h.nodePool()
	case 7, 8:
		return h.kubevirtMachine()
	case 9:
		return dpuCluster(h.team, h.name("dpus").Name)
	case 10:
		return h.runnerLog()
	case 11:
		out := &infrav1.KubevirtMachineTemplate{ObjectMeta: h.name("nodetemplate"), Spec: infrav1.KubevirtMachineTemplateSpec{
			Template: infrav1.KubevirtMachineTemplateResource{Spec: h.kubevirtMachine().Spec},
		}}
		out.Labels = map[string]string{infrav1.LabelNodePool: theirName}

		return out
	case 12:
		return h.flavor()
	default:
		return h.bridge(pick(h, h.neighbour, h.Namespace, h.team, "kube-system"), pick(h, theirName, "dpus-1"))
	}
}

// runnerLog is one of nobody's, or says that it is of the neighbour's claim, that it is for the
// store, or in it.
func (h *hostile) runnerLog() *v1alpha1.RunnerLog {
	out := &v1alpha1.RunnerLog{ObjectMeta: h.name("log"), Spec: v1alpha1.RunnerLogSpec{
		Claim: pick(h, "neighbour", "none"), Text: "the end of a log",
		Stored: pick(h, nil, &v1alpha1.StoredLog{Endpoint: h.ears[0].url, Region: "a", Bucket: "logs", Key: h.neighbour + "/neighbour"}),
	}}
	out.Labels = pick(h, nil, map[string]string{v1alpha1.LabelLogStore: v1alpha1.LogStorePending},
		map[string]string{v1alpha1.LabelLogShelf: "neighbour"})

	return out
}

// flavor is what DPUs are installed with.
func (h *hostile) flavor() *unstructured.Unstructured {
	out := hypershift.NewObject(hypershift.DPUFlavorKind())
	out.SetNamespace(h.team)
	out.SetName(h.name("flavor").Name)
	out.Object["spec"] = map[string]any{
		"dpuMode": "dpu", "ovs": map[string]any{"rawConfigScript": "curl " + h.ears[0].url + "\n"},
		"configFiles": []any{map[string]any{
			"path": pick(h, "/etc/one.conf", "/etc/../root/.kube/config"), "operation": pick(h, "override", "append"),
			"raw": pick(h, "one {{.NotForDPF}}\n", "{{.}}"), "permissions": "0600",
		}},
	}

	return out
}

// flavorName is of a flavor that the tenant made, or of none.
func (h *hostile) flavorName() string {
	names := []string{"none", "../" + private}

	for _, object := range h.made {
		if object.GetObjectKind().GroupVersionKind() == hypershift.DPUFlavorKind() {
			names = append(names, object.GetName())
		}
	}

	return pick(h, names...)
}

func (h *hostile) hostFleet() *infrav1.HostFleet {
	out := &infrav1.HostFleet{ObjectMeta: h.name("fleet"), Spec: infrav1.HostFleetSpec{HostKind: pick(h, linux.Name, mac.Name), Drain: h.drain()}}
	if h.dice.IntN(2) == 0 {
		out.Spec.NodeCredentials = &infrav1.HostNodeCredentials{
			KubeconfigSecretRef: h.ref("kubeconfig"), Lifetime: metav1.Duration{Duration: time.Hour},
		}
	}

	return out
}

// fleetName is of a fleet that the tenant made.
func (h *hostile) fleetName() string {
	names := []string{"none"}

	for _, object := range h.made {
		if _, ok := object.(*infrav1.HostFleet); ok {
			names = append(names, object.GetName())
		}
	}

	return pick(h, names...)
}

func (h *hostile) linux() *infrav1.LinuxMachine {
	return h.linuxAt(h.fleetName(), pick(h, h.own.host.Address(), h.own.theirs.Address()), h.ref("key"), h.ref("kubeconfig"))
}

func (h *hostile) linuxAt(fleetName, at string, key, kubeconfig infrav1.LocalSecretKeySelector) *infrav1.LinuxMachine {
	host, text, _ := net.SplitHostPort(at)
	port, _ := strconv.ParseInt(text, 10, 32)

	return &infrav1.LinuxMachine{ObjectMeta: h.name("host"), Spec: infrav1.LinuxMachineSpec{
		FleetName: fleetName, Address: host, Port: int32(port), User: hostUser, SSHKeySecretRef: key, KubeconfigSecretRef: kubeconfig,
		SSHHostKeys: infrav1.SSHHostKeys{SSHHostKeyChecking: infrav1.HostKeyAcceptNew},
	}}
}

func (h *hostile) mac() *infrav1.ScalewayAppleSiliconMachine {
	return &infrav1.ScalewayAppleSiliconMachine{ObjectMeta: h.name("mac"), Spec: infrav1.ScalewayAppleSiliconMachineSpec{
		FleetName: h.fleetName(), Type: "M4-S", Zone: "fr-par-1", CredentialsSecretRef: infrav1.ScalewaySecretRef{Name: h.secretName()},
		SSHKeySecretRef: h.ref("key"), KubeconfigSecretRef: h.ref("kubeconfig"), SSHPort: 22, SSHHostKeys: infrav1.SSHHostKeys{SSHHostKeyChecking: infrav1.HostKeyAcceptNew},
	}}
}

func (h *hostile) nodePool() *infrav1.KubevirtNodePool {
	return &infrav1.KubevirtNodePool{ObjectMeta: h.name("nodes"), Spec: infrav1.KubevirtNodePoolSpec{
		Replicas: 1, AttachDefaultNetwork: new(false),
		AdditionalNetworks: []infrav1.KubevirtNetwork{{Name: pick(h, "machines", h.neighbour+"/machines")}},
		BootstrapNetworkConfig: &infrav1.KubevirtBootstrapNetworkConfig{
			Addresses: []infrav1.AddressRange{pick[infrav1.AddressRange](h, "10.9.0.0/24", "10.0.0.0/8")}, PrefixLengthV4: 24,
		},
		DNS:               &infrav1.KubevirtNodePoolDNS{HypervisorClusterRef: infrav1.LocalObjectReference{Name: h.closed.Cluster.Name}},
		Drain:             h.drain(),
		RootVolume:        infrav1.KubevirtRootVolume{DiskImage: infrav1.KubevirtDiskImage{ContainerDiskImage: "quay.io/containerdisks/fedora:42"}},
		UserDataSecretRef: pick(h, nil, &infrav1.LocalObjectReference{Name: pick(h, ownKeys, private)}),
	}}
}

// kubevirtMachine is in a node pool of the tenant's, or says that it is in the neighbour's.
func (h *hostile) kubevirtMachine() *infrav1.KubevirtMachine {
	pools := []string{theirName}

	for _, object := range h.made {
		if _, ok := object.(*infrav1.KubevirtNodePool); ok {
			pools = append(pools, object.GetName())
		}
	}

	out := &infrav1.KubevirtMachine{ObjectMeta: h.name("node"), Spec: infrav1.KubevirtMachineSpec{
		VirtualMachineTemplate: runtime.RawExtension{Raw: fmt.Appendf(nil, `{"metadata":{"namespace":%q},"spec":{"runStrategy":"Always","template":{"spec":{
"domain":{"devices":{"disks":[{"name":"root","disk":{"bus":"virtio"}}],"interfaces":[{"name":"net","bridge":{},"acpiIndex":101}]}},
"networks":[{"name":"net","multus":{"networkName":%q}}],"volumes":[{"name":"root","containerDisk":{"image":"quay.io/x/y:1"}}]}}}}`,
			pick(h, h.team, h.neighbour), pick(h, h.team, h.neighbour)+"/machines")},
		BootstrapNetworkConfig: &infrav1.VirtualMachineBootstrapNetworkConfig{
			Interface: "eno101", NetworkName: "net", Subnets: []infrav1.AddressRange{"10.9.0.0/24"},
		},
	}}
	out.Labels = map[string]string{infrav1.LabelNodePool: pick(h, pools...)}

	return out
}

func (h *hostile) bridge(namespace, name string) *bridgev1.DPFHCPBridge {
	out := &bridgev1.DPFHCPBridge{ObjectMeta: h.name("bridge"), Spec: bridgev1.DPFHCPBridgeSpec{
		DPUClusterRef: bridgev1.ObjectReference{Namespace: namespace, Name: name}, BaseDomain: "clusters.example.com",
		OCPReleaseImage: pick(h, image(images.URL, release), image(h.own.web.URL, release)),
		SSHKeySecretRef: bridgev1.LocalObjectReference{Name: h.secretName()}, PullSecretRef: bridgev1.LocalObjectReference{Name: h.secretName()},
		EtcdStorageClass: storageClass, ControlPlaneAvailabilityPolicy: bridgev1.SingleReplica,
		InfrastructureAvailabilityPolicy: bridgev1.SingleReplica, ClusterType: "dpf-dev",
		DPUIgnition: pick(h, nil, &bridgev1.DPUIgnition{
			FlavorName: h.flavorName(), MachineOSURL: image(images.URL, release),
			ConfigMapRef: pick(h, nil, &bridgev1.LocalObjectReference{Name: pick(h, "map-1", private)}),
		}),
	}}

	return out
}

// otherCorners are objects that work, and the same with one thing that is another's.
func (h *hostile) otherCorners() []client.Object {
	key := func(name string) infrav1.LocalSecretKeySelector {
		return infrav1.LocalSecretKeySelector{Name: ownKeys, Key: name}
	}

	plain := h.hostFleet()
	plain.Spec = infrav1.HostFleetSpec{HostKind: linux.Name}
	credentialed := h.hostFleet()
	credentialed.Spec = infrav1.HostFleetSpec{HostKind: linux.Name, NodeCredentials: &infrav1.HostNodeCredentials{
		KubeconfigSecretRef: key("kubeconfig"), Lifetime: metav1.Duration{Duration: time.Hour},
	}}
	cluster := dpuCluster(h.team, h.name("dpus").Name)

	good, stolen := h.bridge(h.team, cluster.GetName()), h.bridge(h.neighbour, theirName)
	for _, object := range []*bridgev1.DPFHCPBridge{good, stolen} {
		object.Spec.OCPReleaseImage = image(images.URL, release)
		object.Spec.SSHKeySecretRef.Name, object.Spec.PullSecretRef.Name, object.Spec.DPUIgnition = ownKeys, ownKeys, nil
	}

	h.handed = cluster.GetName() + "-hcp-kubeconfig"

	return []client.Object{
		plain, credentialed, cluster, good, stolen,
		h.linuxAt(plain.Name, h.own.host.Address(), key("key"), key("kubeconfig")),
		h.linuxAt(credentialed.Name, h.own.host.Address(), key("key"), infrav1.LocalSecretKeySelector{}),
		h.linuxAt(plain.Name, h.own.theirs.Address(), key("key"), key("kubeconfig")),
	}
}

// lie writes an object's status as the tenant would have it.
func (h *hostile) lie(object client.Object) error {
	status := ""

	switch object := object.(type) {
	case *v1alpha1.MachineClaim:
		if strings.HasPrefix(object.Name, forgedPrefix) {
			status = fmt.Sprintf(`{"status":{"phase":"Ready","vmRef":{"hypervisorCluster":%q,"vmId":"%d","node":%q,"operatorUID":%q},`+
				`"networkInfo":{"hostname":"forged","fqdn":"forged.closed.example.com","ipAddress":"10.9.0.9"},`+
				`"bootstrapInfo":{"runnerName":"neighbour"}}}`,
				h.closed.Cluster.Name, 10000+h.serial, fleet.Model().Nodes[0].Name, h.OperatorUID)
		}
	case *infrav1.KubevirtMachine:
		status = `{"status":{"ready":true,"phase":"Running","allocatedBootstrapAddresses":{"eno101":["10.9.0.9/24"]}}}`
	case *unstructured.Unstructured:
		status = dpuReady
	}

	if status == "" {
		return nil
	}

	return client.IgnoreNotFound(h.tenant.Status().Patch(h.t.Context(), object, client.RawPatch(types.MergePatchType, []byte(status))))
}

// await waits until the tenant has what it may have.
func (h *hostile) await() {
	h.Eventually("the tenant has its hosted cluster and its host", func() (bool, string) {
		err := h.Client.Get(h.t.Context(), client.ObjectKey{Namespace: h.team, Name: h.handed}, &corev1.Secret{})

		return err == nil && h.own.host.Logins() > 0, fmt.Sprint(err, " logins ", h.own.host.Logins())
	})
}
