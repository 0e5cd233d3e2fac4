// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	hfv1 "github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/linux"
	"github.com/hyperfleet/hyperfleet/hosts/mac"
	"github.com/hyperfleet/hyperfleet/hosts/machine"
	"github.com/hyperfleet/hyperfleet/hosts/plan"
	linuxplan "github.com/hyperfleet/hyperfleet/hosts/plan/linux"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/log"
	sim "github.com/hyperfleet/hyperfleet/sim/scaleway"
)

type (
	macSpec   = infrav1.ScalewayAppleSiliconMachineSpec
	macStatus = infrav1.ScalewayAppleSiliconMachineStatus
)

// The hash of a fleet is computed when the operator starts. Its programs have a hundred megabytes, so no reconcile may
// compute it again.
func TestHashIsComputedOnce(t *testing.T) { //nolint:paralleltest // it counts the allocations of the process
	for name, kind := range map[string]machine.Kind{
		mac.Name: mac.New(mac.Options{Fleet: newMacConfig()}), linux.Name: linux.New(linuxplan.Config{AgentBinary: plan.NewText("agent")}),
	} {
		if allocations := testing.AllocsPerRun(100, func() { kind.Hash() }); kind.Hash() == "" || allocations > 0 {
			t.Errorf("%s: each call of Hash, which returns %q, allocates %.0f times", name, kind.Hash(), allocations)
		}
	}
}

// The hash of Macs, which decides whether they get a push, changes with each setting and each program of the operator's
// configuration that they get, except for Tart.
func TestSettingsOfMacsAreInTheHash(t *testing.T) {
	t.Parallel()

	folder := t.TempDir()
	file := func(text string) string {
		path := filepath.Join(folder, text)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}

		return path
	}
	hash := func(change func(*config.MacHosts)) string {
		settings := config.MacHosts{
			TartKubeletFile: file("kubelet"), TartFile: file("tart"), NodeExporterFile: file("exporter"), MaxPods: 2,
			VMEgressCIDR: "10.32.0.0/16", VMDNSIP: "10.96.0.10", PrivateNetworkCIDR: "172.16.16.0/22",
			Tailnet: config.Tailnet{Enabled: true, CLIFile: file("tailscale"), DaemonFile: file("tailscaled"), Tags: []string{"tag:host"}},
		}
		change(&settings)

		fleet, err := mac.Load(settings)
		if err != nil {
			t.Fatal(err)
		}

		return mac.New(mac.Options{Fleet: fleet}).Hash()
	}
	before := hash(func(*config.MacHosts) {})

	for name, change := range map[string]func(*config.MacHosts){
		"kubelet":            func(s *config.MacHosts) { s.TartKubeletFile = file("kubelet-2") },
		"Tart":               func(s *config.MacHosts) { s.TartFile = file("tart-2") },
		"node_exporter":      func(s *config.MacHosts) { s.NodeExporterFile = file("exporter-2") },
		"tailscale":          func(s *config.MacHosts) { s.Tailnet.CLIFile = file("tailscale-2") },
		"tailscaled":         func(s *config.MacHosts) { s.Tailnet.DaemonFile = file("tailscaled-2") },
		"maxPods":            func(s *config.MacHosts) { s.MaxPods = 1 },
		"nodeLabels":         func(s *config.MacHosts) { s.NodeLabels = map[string]string{"zone": "a"} },
		"vmEgressCIDR":       func(s *config.MacHosts) { s.VMEgressCIDR = "10.64.0.0/16" },
		"vmDNSIP":            func(s *config.MacHosts) { s.VMDNSIP = "10.96.0.11" },
		"privateNetworkCIDR": func(s *config.MacHosts) { s.PrivateNetworkCIDR = "172.16.32.0/22" },
		"tailnet":            func(s *config.MacHosts) { s.Tailnet.Enabled = false },
		"tags":               func(s *config.MacHosts) { s.Tailnet.Tags = []string{"tag:mac"} },
		"acceptRoutes":       func(s *config.MacHosts) { s.Tailnet.AcceptRoutes = true },
	} {
		if isSame := hash(change) == before; isSame != (name == "Tart") {
			t.Errorf("another %s: the hash is the same: %v", name, isSame)
		}
	}
}

func TestOrderedMachine(t *testing.T) {
	t.Parallel()

	w := newMacFixture(t, sim.Options{})
	w.createMachine("mac-1", func(s *macSpec) { s.OS = "macos-sonoma-14.6" })

	w.requireResult(w.provision("mac-1"), "WaitingForServer")

	server := w.requireServers(1)[0]
	if len(server.SSHKeys) != 1 || server.OS != "macos-sonoma-14.6" || server.Type != "M4-S" {
		t.Errorf("ordered %+v: want the operator's key and the operating system", server)
	}

	w.clock.Step(10 * time.Minute)
	w.requireResult(w.provision("mac-1"), "Done")

	got := w.getMachine("mac-1")
	server = w.requireServers(1)[0]
	want := infrav1.ScalewayAppleSiliconMachineStatus{
		HostStatus: infrav1.HostStatus{
			ObservedGeneration: 1, Phase: infrav1.HostProvisioning,
			Addresses: []infrav1.HostAddress{{Type: "ExternalIP", Address: server.IP}},
		},
		ServerID: server.ID, ProviderID: "scw-applesilicon://fr-par-1/" + server.ID, HostCPU: 10, HostMemoryMB: 16384,
		SSHUser: "m1",
	}
	got.Status.Conditions = nil

	if diff := cmp.Diff(want, got.Status); diff != "" {
		t.Error(diff)
	}

	if name := "hf-mac-1-" + string(got.UID); server.Name != name {
		t.Errorf("server name %s, want %s", server.Name, name)
	}

	calls := w.sim.Calls()
	w.requireResult(w.provision("mac-1"), "Done")

	if diff := cmp.Diff(calls, w.sim.Calls()); diff != "" {
		t.Errorf("a machine with a server calls Scaleway again:\n%s", diff)
	}
}

func TestAccessAndPlan(t *testing.T) {
	t.Parallel()

	w := newMacFixture(t, sim.Options{})
	w.createMachine("mac-1", func(s *macSpec) { s.SSHPort, s.HostCPU = 2222, 4 })
	w.provisionFully("mac-1")

	object := w.getMachine("mac-1")
	server := w.requireServers(1)[0]

	access, err := w.kind.Access(t.Context(), kubeSecrets(), object)
	if err != nil {
		t.Fatal(err)
	}

	if access.Address != server.IP+":2222" || access.User != "m1" || access.Password.Reveal() != server.Password ||
		!strings.Contains(access.PrivateKey.Reveal(), "PRIVATE KEY") {
		t.Errorf("access %+v", access)
	}

	p, err := w.kind.RenderPlan(t.Context(), kubeSecrets(), object, access)
	if err != nil {
		t.Fatal(err)
	}

	plist, _ := p.FindPart("launchd-plist")
	for _, argument := range []string{
		"--node-name=mac-1", "--provider-id=scw-applesilicon://fr-par-1/" + server.ID, "--host-cpu=4", "--host-memory-mb=16384",
		"/Users/m1/Library/Logs/", "Aqua",
	} {
		if !strings.Contains(plist.Content.String(), argument) {
			t.Errorf("the kubelet is not started with %s", argument)
		}
	}

	kubeconfig, _ := p.FindPart("kubeconfig")
	if kubeconfig.Secret.Reveal() != "kubeconfig of "+t.Name() {
		t.Error("the plan has the wrong kubeconfig")
	}

	w.sim.Rename(server.ID, "theirs")

	if _, err := w.kind.Access(t.Context(), kubeSecrets(), object); errclass.ReasonOf(err, "") != "ServerRenamed" {
		t.Errorf("access to a server of another machine: %v", err)
	}

	w.kind.RecordPush(object)

	if object.Status.TartKubeletBinarySHA != newMacConfig().TartKubeletBinary.SHA256() {
		t.Errorf("the status has checksum %q", object.Status.TartKubeletBinarySHA)
	}
}

func TestConfigurationThatCannotBeRendered(t *testing.T) {
	t.Parallel()

	w := newMacFixture(t, sim.Options{})
	w.createMachine("mac-1", nil)
	w.provisionFully("mac-1")

	cfg := newMacConfig()
	cfg.VMCachePNCIDR = "10.0.0.0/99"
	w.kind = mac.New(mac.Options{APIReader: env.Client, Secrets: kubeSecrets(), Fleet: cfg})

	access := machine.Access{Password: log.NewSecret("of-m1")} // the status records the user
	_, err := w.kind.RenderPlan(t.Context(), kubeSecrets(), w.getMachine("mac-1"), access)
	if errclass.ClassOf(err) != errclass.Configuration || errclass.ReasonOf(err, "") != "ConfigNotRendered" ||
		!strings.Contains(err.Error(), "10.0.0.0/99") {
		t.Errorf("%v", err)
	}

	w.kind = mac.New(mac.Options{APIReader: env.Client, Secrets: kubeSecrets()})
	if _, err := w.kind.RenderPlan(t.Context(), kubeSecrets(), w.getMachine("mac-1"), access); w.kind.Hash() != "" || errclass.ReasonOf(err, "") != "NoConfiguration" {
		t.Errorf("without a kubelet: hash %q, %v", w.kind.Hash(), err)
	}
}

// The operator crashes after the order, before it has recorded the server's ID.
func TestCrashAfterTheOrder(t *testing.T) {
	t.Parallel()

	w := newMacFixture(t, sim.Options{})
	w.createMachine("mac-1", nil)
	w.requireResult(w.provision("mac-1"), "WaitingForServer")

	now := metav1.NewTime(w.clock.Now())
	w.updateStatus("mac-1", func(s *macStatus) { s.ServerID, s.ProviderID, s.OrderedAt = "", "", &now })
	w.restart()

	w.requireResult(w.provision("mac-1"), "WaitingForServer")

	if got := w.getMachine("mac-1").Status; got.ServerID != w.requireServers(1)[0].ID || got.OrderedAt != nil {
		t.Errorf("status %+v: want the server that was ordered", got)
	}
}

// The response to an order is lost. The order was executed, or not.
func TestLostOrderResponse(t *testing.T) {
	t.Parallel()

	for name, carriedOut := range map[string]bool{"executed": true, "not executed": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			w := newMacFixture(t, sim.Options{})
			w.createMachine("mac-1", nil)
			w.sim.Inject(sim.Fault{Method: post, Path: "/servers", Status: 504, RunsCall: carriedOut, Times: 1})

			if got := w.provision("mac-1"); !strings.HasPrefix(got, "fail: ") {
				t.Fatalf("the reconcile ended with %s", got)
			}

			if carriedOut {
				w.requireResult(w.provision("mac-1"), "WaitingForServer")
			} else {
				w.requireResult(w.provision("mac-1"), "OrderUnknown")
				w.requireServers(0)
				w.clock.Step(3 * time.Minute)
				w.requireResult(w.provision("mac-1"), "WaitingForServer")
			}

			w.requireServers(1)
		})
	}
}

func TestOrderErrors(t *testing.T) {
	t.Parallel()

	tests := map[string]struct {
		fault sim.Fault
		want  string
	}{
		"out of stock":  {sim.Fault{Method: post, Path: "/servers", Status: 503, Type: "out_of_stock"}, "ScalewayOutOfStock"},
		"quota":         {sim.Fault{Method: post, Path: "/servers", Status: 403, Type: "quotas_exceeded"}, "ScalewayQuota"},
		"no permission": {sim.Fault{Method: post, Path: "/servers", Status: 403, Type: "permissions_denied"}, "ScalewayDenied"},
	}

	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			w := newMacFixture(t, sim.Options{})
			w.createMachine("mac-1", nil)
			w.sim.Inject(tc.fault)
			w.requireResult(w.provision("mac-1"), tc.want)

			if w.getMachine("mac-1").Status.OrderedAt != nil {
				t.Error("the status still has an open order that was rejected")
			}

			w.sim.ClearFaults()
			w.requireResult(w.provision("mac-1"), "WaitingForServer")
			w.requireServers(1)
		})
	}
}

func TestBadSecrets(t *testing.T) {
	t.Parallel()

	w := newMacFixture(t, sim.Options{})
	w.createSecret("no-key", map[string]string{"key": "not a key but secret"})
	w.createSecret("bad-api", map[string]string{
		infrav1.ScalewayAccessKey: "SCW", infrav1.ScalewaySecretKey: "secret-and-no-uuid", infrav1.ScalewayProjectID: "x",
	})

	w.createMachine("a", func(s *macSpec) { s.CredentialsSecretRef.Name = "absent" })
	w.createMachine("b", func(s *macSpec) { s.CredentialsSecretRef.Name = "bad-api" })
	w.createMachine("c", func(s *macSpec) { s.SSHKeySecretRef.Name = "no-key" })

	for name, want := range map[string]string{"a": credential.ReasonSecretNotFound, "b": "ScalewayDenied", "c": "SSHKeyInvalid"} {
		w.requireResult(w.provision(name), want)

		message := w.getMachine(name).Status.Conditions[0].Message
		if strings.Contains(message, "secret-and-no-uuid") || strings.Contains(message, "but secret") {
			t.Errorf("%s: the message has the secret: %s", name, message)
		}
	}

	w.requireServers(0)
}

// A Scaleway key is sent only to an API that its Secret allows, whatever endpoint the Secret
// contains.
func TestScalewayKeysAreSentOnlyToListedServers(t *testing.T) {
	t.Parallel()

	w := newMacFixture(t, sim.Options{})
	w.createMachine("a", nil)

	m := w.getMachine("a")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: m.Spec.CredentialsSecretRef.Name}}

	allow := func(servers string) {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, hfv1.AnnotationAllowedServers, servers)
		w.must(env.Client.Patch(t.Context(), secret, client.RawPatch(types.MergePatchType, patch)))
	}

	allow("api.scaleway.com")
	w.requireResult(w.provision("a"), credential.ReasonServerNotAllowed)
	w.requireServers(0)
}

// The author of a Secret can make the operator call only public servers, unless an administrator
// lists the server.
func TestScalewayAtPrivateAddress(t *testing.T) {
	t.Parallel()

	w := newMacFixture(t, sim.Options{})
	w.createMachine("a", nil)

	w.egress = nil
	w.restart()
	w.requireResult(w.provision("a"), "ScalewayDenied")
	w.requireServers(0)

	message := meta.FindStatusCondition(w.getMachine("a").Status.Conditions, infrav1.ConditionProvisioned).Message
	if !strings.Contains(message, "127.0.0.1, which is not public") || len(w.sim.Keys()) > 0 {
		t.Errorf("Scaleway has keys %v, and the condition is %s", w.sim.Keys(), message)
	}
}

// Twenty machines adopt servers of a pool of twelve at the same time.
func TestAdoptionIsExclusive(t *testing.T) {
	t.Parallel()

	w := newMacFixture(t, sim.Options{})
	for range 12 {
		w.sim.AddServer("mac-pool-"+t.Name(), "M4-S")
	}

	w.sim.AddServer("mac-pool-other", "M1-M")
	w.sim.AddServer("hf-mac-pool-else", "M4-S")

	const machines = 20

	var all []string
	for i := range machines {
		all = append(all, "mac-"+string(rune('a'+i)))
	}

	for _, name := range all {
		w.createMachine(name, func(s *macSpec) { s.AdoptPoolPrefix = "mac-pool-" })
	}

	for range 3 {
		var passes sync.WaitGroup
		for _, name := range all {
			passes.Go(func() { w.provision(name) })
		}

		passes.Wait()
		w.clock.Step(time.Minute)
	}

	has := map[string]string{}

	for _, name := range all {
		got := w.getMachine(name)
		if id := got.Status.ServerID; id != "" {
			if other := has[id]; other != "" {
				t.Errorf("%s and %s have the same server", other, name)
			}

			has[id] = name
		}
	}

	if len(has) != 12 {
		t.Errorf("%d machines have a server, want 12", len(has))
	}

	for _, server := range w.requireServers(14) {
		if owner := has[server.ID]; owner != "" && server.Name != "hf-"+owner+"-"+string(w.getMachine(owner).UID) {
			t.Errorf("server of %s is named %s", owner, server.Name)
		}
	}
}

// An operator of another cluster renames the server at the same time.
func TestAdoptionThatAnotherClusterWins(t *testing.T) {
	t.Parallel()

	w := newMacFixture(t, sim.Options{})
	first, second := w.sim.AddServer("pool-1", "M4-S"), w.sim.AddServer("pool-2", "M4-S")
	w.createMachine("mac-1", func(s *macSpec) { s.AdoptPoolPrefix = "pool-" })

	w.requireResult(w.provision("mac-1"), "Adopting")
	w.sim.Rename(first.ID, "hf-theirs-uid")
	w.requireResult(w.provision("mac-1"), "AdoptedByOther")
	w.requireResult(w.provision("mac-1"), "Adopting")
	w.requireResult(w.provision("mac-1"), "Done")

	if got := w.getMachine("mac-1").Status; got.ServerID != second.ID || got.PoolName != "pool-2" {
		t.Errorf("status %+v", got)
	}
}

// The operator crashes after it has recorded the server and before it has renamed it.
func TestCrashDuringAdoption(t *testing.T) {
	t.Parallel()

	w := newMacFixture(t, sim.Options{})
	server := w.sim.AddServer("pool-1", "M4-S")
	w.createMachine("mac-1", func(s *macSpec) { s.AdoptPoolPrefix = "pool-" })
	w.sim.Inject(sim.Fault{Method: "PATCH", Status: 502})

	if got := w.provision("mac-1"); !strings.HasPrefix(got, "fail: ") || w.getMachine("mac-1").Status.ServerID != server.ID {
		t.Fatalf("the reconcile ended with %s", got)
	}

	w.sim.ClearFaults()
	w.restart()
	w.requireResult(w.provision("mac-1"), "Adopting")
	w.requireResult(w.provision("mac-1"), "Done")
}

func TestServerError(t *testing.T) {
	t.Parallel()

	w := newMacFixture(t, sim.Options{})
	w.createMachine("mac-1", nil)
	w.provisionFully("mac-1")

	now := metav1.NewTime(w.clock.Now())
	w.updateStatus("mac-1", func(s *macStatus) { s.UnreachableSince = &now })

	id := w.getMachine("mac-1").Status.ServerID

	w.sim.SetError(id)
	w.requireResult(w.provision("mac-1"), "ServerError")
	w.sim.RemoveServer(id)
	w.requireResult(w.provision("mac-1"), "ServerNotFound")
}
