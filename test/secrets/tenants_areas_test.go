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
	// ownToken is the token in the tenant's kubeconfig for the tenant's server.
	ownToken = "a-token-of-the-tenant"
	// ownKeys is the tenant's Secret with all keys that its objects refer to.
	ownKeys = "keys"
	// theirName is the name of the neighbour's objects.
	theirName = "theirs"
)

// createOtherObjects creates the neighbour's objects of the other areas, Secrets that no tenant may read, and
// the tenant's Secrets.
func (h *tenantFixture) createOtherObjects() {
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

	pool := h.newNodePool()
	pool.ObjectMeta = metav1.ObjectMeta{Namespace: h.neighbour, Name: theirName}
	pool.Spec.DNS, pool.Spec.Drain, pool.Spec.UserDataSecretRef = nil, nil, nil

	cluster := newDPUCluster(h.neighbour, theirName)

	for _, object := range []client.Object{
		secret(h.neighbour, private, privateCanary), secret(h.neighbour, "host", hostCanary), pool, cluster,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: h.neighbour, Name: theirName}, Data: map[string]string{"a": "b"}},
	} {
		h.Create(object)
		h.neighbourObjects = append(h.neighbourObjects, object)
	}

	if err := h.Client.Status().Patch(h.t.Context(), cluster, client.RawPatch(types.MergePatchType, []byte(dpuReady))); err != nil {
		h.t.Fatal(err)
	}

	h.Create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: h.team, Name: "github"}, StringData: map[string]string{"pat": "ghp_own"}})
	h.Create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: h.team, Name: ownKeys}, StringData: map[string]string{
		"key": h.own.key, "kubeconfig": h.own.newKubeconfig(), "userdata": "#cloud-config\n", "pat": "ghp_own", "secret": "own",
		bridgev1.SSHKeySecretKey: "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f admin",
		bridgev1.PullSecretKey: fmt.Sprintf(`{"auths":{%q:{"auth":%q},%q:{"auth":%q}}}`,
			strings.TrimPrefix(releaseImages.URL, "https://"), base64.StdEncoding.EncodeToString([]byte("user:password")),
			strings.TrimPrefix(h.own.web.URL, "https://"), base64.StdEncoding.EncodeToString([]byte("own:"+ownToken))),
		infrav1.ScalewayAccessKey: "SCW00000000000000000", infrav1.ScalewaySecretKey: "11111111-2222-3333-4444-555555555555",
		infrav1.ScalewayProjectID: "11111111-2222-3333-4444-666666666666", infrav1.ScalewayAPIURL: h.own.plain.URL,
	}})
}

// newKubeconfig returns a kubeconfig for the tenant's server.
func (o *tenantServers) newKubeconfig() string {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: o.web.Certificate().Raw})

	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"a","contexts":[{"name":"a","context":{"cluster":"a","user":"a"}}],
"users":[{"name":"a","user":{"token":%q}}],"clusters":[{"name":"a","cluster":{"server":%q,"certificate-authority-data":%q}}]}`,
		ownToken, o.web.URL, base64.StdEncoding.EncodeToString(ca))
}

// startOtherAreas runs HyperShift and the areas that h.Start does not run: hosts and the bridge.
func (h *tenantFixture) startOtherAreas() {
	sim, err := simulator.Start(simulator.Options{Config: h.Env.Config, Supported: []string{"4.16", "4.15"}})
	if err != nil {
		h.t.Fatal(err)
	}

	h.t.Cleanup(func() { _ = sim.Close() })

	settings := config.Default().Hosts
	settings.ProbeInterval, settings.RetryBase, settings.RetryCap = 0, 50*time.Millisecond, time.Second
	settings.Linux = config.LinuxHosts{
		AgentFile: h.writeFile("agent"), NodeExporterFile: h.writeFile("exporter"), MaxPods: 4, VMCIDR: "192.168.122.0/24",
	}

	area := &hosts.Area{Config: settings, Registry: prometheus.NewRegistry(), Clock: clock.RealClock{}}
	h.startManager(area.Setup, h.team, h.neighbour, h.Namespace)

	cfg := config.Default().Bridge
	cfg.AddressRanges = []string{"10.0.0.0/8"}
	bridges := &bridge.Area{
		Config: cfg, Registry: prometheus.NewRegistry(), Clock: clock.RealClock{}, Log: slog.New(slog.DiscardHandler),
		RegistryTransport: releaseImages.Client().Transport,
	}
	h.startManager(bridges.Setup)
}

func (h *tenantFixture) writeFile(name string) string {
	path := filepath.Join(h.t.TempDir(), name)
	if err := os.WriteFile(path, []byte(name), 0o600); err != nil {
		h.t.Fatal(err)
	}

	return path
}

// startManager runs an area as its own process would, for the given namespaces, or for all namespaces.
func (h *tenantFixture) startManager(setup func(context.Context, ctrl.Manager) error, namespaces ...string) {
	way := rest.CopyConfig(h.Env.Config)
	way.QPS = -1
	way.Wrap(h.calls.wrapTransport)

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

func newDPUCluster(namespace, name string) *unstructured.Unstructured {
	out := hypershift.NewObject(hypershift.DPUClusterKind())
	out.SetNamespace(namespace)
	out.SetName(name)
	out.Object["spec"] = map[string]any{"type": "static", "maxNodes": int64(10)}

	return out
}

// pickKeyRef returns a reference to a Secret of the tenant, or to a Secret with a name from another namespace.
func (h *tenantFixture) pickKeyRef(key string) infrav1.LocalSecretKeySelector {
	return infrav1.LocalSecretKeySelector{Name: h.pickSecretName(), Key: key}
}

func (h *tenantFixture) pickSecretName() string {
	return pick(h, ownKeys, ownKeys, ownKeys, private, "closed", "shared", "host", h.neighbour+"/"+private, "../"+private)
}

func (h *tenantFixture) pickDrain() *infrav1.NodeDrain {
	return pick(h, nil, &infrav1.NodeDrain{KubeconfigSecretRef: h.pickKeyRef("kubeconfig"), Timeout: metav1.Duration{Duration: time.Second}})
}

// newOtherObject returns a random object of the other areas, or an object that they read.
func (h *tenantFixture) newOtherObject() client.Object {
	switch h.random.IntN(14) {
	case 0:
		return &corev1.Secret{ObjectMeta: h.newMeta("secret"), StringData: map[string]string{
			"kubeconfig": pick(h, h.own.newKubeconfig(), "{"), "key": pick(h, h.own.key, "no key"), "pat": "x",
		}}
	case 1:
		return &corev1.ConfigMap{ObjectMeta: h.newMeta("map"), Data: map[string]string{
			pick(h, "target.ign", "live.ign"): `{"ignition":{"version":"3.4.0","config":{"merge":[{"source":"` + h.unlisted[0].url + `"}]}}}`,
		}}
	case 2:
		return h.newHostFleet()
	case 3, 4:
		return h.newLinuxMachine()
	case 5:
		return h.newMac()
	case 6:
		return h.newNodePool()
	case 7, 8:
		return h.newKubevirtMachine()
	case 9:
		return newDPUCluster(h.team, h.newMeta("dpus").Name)
	case 10:
		return h.newRunnerLog()
	case 11:
		out := &infrav1.KubevirtMachineTemplate{ObjectMeta: h.newMeta("nodetemplate"), Spec: infrav1.KubevirtMachineTemplateSpec{
			Template: infrav1.KubevirtMachineTemplateResource{Spec: h.newKubevirtMachine().Spec},
		}}
		out.Labels = map[string]string{infrav1.LabelNodePool: theirName}

		return out
	case 12:
		return h.newFlavor()
	default:
		return h.newBridge(pick(h, h.neighbour, h.Namespace, h.team, "kube-system"), pick(h, theirName, "dpus-1"))
	}
}

// newRunnerLog returns a log of an unknown claim or of the neighbour's claim, which is marked as waiting for
// the log store or as stored.
func (h *tenantFixture) newRunnerLog() *v1alpha1.RunnerLog {
	out := &v1alpha1.RunnerLog{ObjectMeta: h.newMeta("log"), Spec: v1alpha1.RunnerLogSpec{
		Claim: pick(h, "neighbour", "none"), Text: "the end of a log",
		Stored: pick(h, nil, &v1alpha1.StoredLog{Endpoint: h.unlisted[0].url, Region: "a", Bucket: "logs", Key: h.neighbour + "/neighbour"}),
	}}
	out.Labels = pick(h, nil, map[string]string{v1alpha1.LabelLogStore: v1alpha1.LogStorePending},
		map[string]string{v1alpha1.LabelUnassignedLog: "neighbour"})

	return out
}

// newFlavor returns a configuration of DPUs.
func (h *tenantFixture) newFlavor() *unstructured.Unstructured {
	out := hypershift.NewObject(hypershift.DPUFlavorKind())
	out.SetNamespace(h.team)
	out.SetName(h.newMeta("flavor").Name)
	out.Object["spec"] = map[string]any{
		"dpuMode": "dpu", "ovs": map[string]any{"rawConfigScript": "curl " + h.unlisted[0].url + "\n"},
		"configFiles": []any{map[string]any{
			"path": pick(h, "/etc/one.conf", "/etc/../root/.kube/config"), "operation": pick(h, "override", "append"),
			"raw": pick(h, "one {{.NotForDPF}}\n", "{{.}}"), "permissions": "0600",
		}},
	}

	return out
}

// pickFlavorName returns the name of a flavor of the tenant, or of no flavor.
func (h *tenantFixture) pickFlavorName() string {
	names := []string{"none", "../" + private}

	for _, object := range h.created {
		if object.GetObjectKind().GroupVersionKind() == hypershift.DPUFlavorKind() {
			names = append(names, object.GetName())
		}
	}

	return pick(h, names...)
}

func (h *tenantFixture) newHostFleet() *infrav1.HostFleet {
	out := &infrav1.HostFleet{ObjectMeta: h.newMeta("fleet"), Spec: infrav1.HostFleetSpec{HostKind: pick(h, linux.Name, mac.Name), Drain: h.pickDrain()}}
	if h.random.IntN(2) == 0 {
		out.Spec.NodeCredentials = &infrav1.HostNodeCredentials{
			KubeconfigSecretRef: h.pickKeyRef("kubeconfig"), Lifetime: metav1.Duration{Duration: time.Hour},
		}
	}

	return out
}

// pickFleetName returns the name of a fleet of the tenant, or of no fleet.
func (h *tenantFixture) pickFleetName() string {
	names := []string{"none"}

	for _, object := range h.created {
		if _, ok := object.(*infrav1.HostFleet); ok {
			names = append(names, object.GetName())
		}
	}

	return pick(h, names...)
}

func (h *tenantFixture) newLinuxMachine() *infrav1.LinuxMachine {
	return h.newLinuxMachineAt(h.pickFleetName(), pick(h, h.own.host.Address(), h.own.neighbourHost.Address()), h.pickKeyRef("key"), h.pickKeyRef("kubeconfig"))
}

func (h *tenantFixture) newLinuxMachineAt(fleetName, at string, key, kubeconfig infrav1.LocalSecretKeySelector) *infrav1.LinuxMachine {
	host, text, _ := net.SplitHostPort(at)
	port, _ := strconv.ParseInt(text, 10, 32)

	return &infrav1.LinuxMachine{ObjectMeta: h.newMeta("host"), Spec: infrav1.LinuxMachineSpec{
		FleetName: fleetName, Address: host, Port: int32(port), User: hostUser, SSHKeySecretRef: key, KubeconfigSecretRef: kubeconfig,
		SSHHostKeys: infrav1.SSHHostKeys{SSHHostKeyChecking: infrav1.HostKeyAcceptNew},
	}}
}

func (h *tenantFixture) newMac() *infrav1.ScalewayAppleSiliconMachine {
	return &infrav1.ScalewayAppleSiliconMachine{ObjectMeta: h.newMeta("mac"), Spec: infrav1.ScalewayAppleSiliconMachineSpec{
		FleetName: h.pickFleetName(), Type: "M4-S", Zone: "fr-par-1", CredentialsSecretRef: infrav1.ScalewaySecretRef{Name: h.pickSecretName()},
		SSHKeySecretRef: h.pickKeyRef("key"), KubeconfigSecretRef: h.pickKeyRef("kubeconfig"), SSHPort: 22, SSHHostKeys: infrav1.SSHHostKeys{SSHHostKeyChecking: infrav1.HostKeyAcceptNew},
	}}
}

func (h *tenantFixture) newNodePool() *infrav1.KubevirtNodePool {
	return &infrav1.KubevirtNodePool{ObjectMeta: h.newMeta("nodes"), Spec: infrav1.KubevirtNodePoolSpec{
		Replicas: 1, AttachDefaultNetwork: new(false),
		AdditionalNetworks: []infrav1.KubevirtNetwork{{Name: pick(h, "machines", h.neighbour+"/machines")}},
		BootstrapNetworkConfig: &infrav1.KubevirtBootstrapNetworkConfig{
			Addresses: []infrav1.AddressRange{pick[infrav1.AddressRange](h, "10.9.0.0/24", "10.0.0.0/8")}, PrefixLengthV4: 24,
		},
		DNS:               &infrav1.KubevirtNodePoolDNS{HypervisorClusterRef: infrav1.LocalObjectReference{Name: h.closed.Cluster.Name}},
		Drain:             h.pickDrain(),
		RootVolume:        infrav1.KubevirtRootVolume{DiskImage: infrav1.KubevirtDiskImage{ContainerDiskImage: "quay.io/containerdisks/fedora:42"}},
		UserDataSecretRef: pick(h, nil, &infrav1.LocalObjectReference{Name: pick(h, ownKeys, private)}),
	}}
}

// newKubevirtMachine returns a machine in a node pool of the tenant, or one that claims to be in the
// neighbour's.
func (h *tenantFixture) newKubevirtMachine() *infrav1.KubevirtMachine {
	pools := []string{theirName}

	for _, object := range h.created {
		if _, ok := object.(*infrav1.KubevirtNodePool); ok {
			pools = append(pools, object.GetName())
		}
	}

	out := &infrav1.KubevirtMachine{ObjectMeta: h.newMeta("node"), Spec: infrav1.KubevirtMachineSpec{
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

func (h *tenantFixture) newBridge(namespace, name string) *bridgev1.DPFHCPBridge {
	out := &bridgev1.DPFHCPBridge{ObjectMeta: h.newMeta("bridge"), Spec: bridgev1.DPFHCPBridgeSpec{
		DPUClusterRef: bridgev1.ObjectReference{Namespace: namespace, Name: name}, BaseDomain: "clusters.example.com",
		OCPReleaseImage: pick(h, newImageReference(releaseImages.URL, release), newImageReference(h.own.web.URL, release)),
		SSHKeySecretRef: bridgev1.LocalObjectReference{Name: h.pickSecretName()}, PullSecretRef: bridgev1.LocalObjectReference{Name: h.pickSecretName()},
		EtcdStorageClass: storageClass, ControlPlaneAvailabilityPolicy: bridgev1.SingleReplica,
		InfrastructureAvailabilityPolicy: bridgev1.SingleReplica, ClusterType: "dpf-dev",
		DPUIgnition: pick(h, nil, &bridgev1.DPUIgnition{
			FlavorName: h.pickFlavorName(), MachineOSURL: newImageReference(releaseImages.URL, release),
			ConfigMapRef: pick(h, nil, &bridgev1.LocalObjectReference{Name: pick(h, "map-1", private)}),
		}),
	}}

	return out
}

// listOtherEdgeCases returns objects that work, and the same objects with one reference to something of
// another tenant.
func (h *tenantFixture) listOtherEdgeCases() []client.Object {
	key := func(name string) infrav1.LocalSecretKeySelector {
		return infrav1.LocalSecretKeySelector{Name: ownKeys, Key: name}
	}

	plain := h.newHostFleet()
	plain.Spec = infrav1.HostFleetSpec{HostKind: linux.Name}
	credentialed := h.newHostFleet()
	credentialed.Spec = infrav1.HostFleetSpec{HostKind: linux.Name, NodeCredentials: &infrav1.HostNodeCredentials{
		KubeconfigSecretRef: key("kubeconfig"), Lifetime: metav1.Duration{Duration: time.Hour},
	}}
	cluster := newDPUCluster(h.team, h.newMeta("dpus").Name)

	good, stolen := h.newBridge(h.team, cluster.GetName()), h.newBridge(h.neighbour, theirName)
	for _, object := range []*bridgev1.DPFHCPBridge{good, stolen} {
		object.Spec.OCPReleaseImage = newImageReference(releaseImages.URL, release)
		object.Spec.SSHKeySecretRef.Name, object.Spec.PullSecretRef.Name, object.Spec.DPUIgnition = ownKeys, ownKeys, nil
	}

	h.kubeconfigSecret = cluster.GetName() + "-hcp-kubeconfig"

	return []client.Object{
		plain, credentialed, cluster, good, stolen,
		h.newLinuxMachineAt(plain.Name, h.own.host.Address(), key("key"), key("kubeconfig")),
		h.newLinuxMachineAt(credentialed.Name, h.own.host.Address(), key("key"), infrav1.LocalSecretKeySelector{}),
		h.newLinuxMachineAt(plain.Name, h.own.neighbourHost.Address(), key("key"), key("kubeconfig")),
	}
}

// forgeStatus writes a false status as the tenant.
func (h *tenantFixture) forgeStatus(object client.Object) error {
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

// waitForOwnObjects waits until the tenant has everything that it may have.
func (h *tenantFixture) waitForOwnObjects() {
	h.Eventually("the tenant has its hosted cluster and its host", func() (bool, string) {
		err := h.Client.Get(h.t.Context(), client.ObjectKey{Namespace: h.team, Name: h.kubeconfigSecret}, &corev1.Secret{})

		return err == nil && h.own.host.Logins() > 0, fmt.Sprint(err, " logins ", h.own.host.Logins())
	})
}
