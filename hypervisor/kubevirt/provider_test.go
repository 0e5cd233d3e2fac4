// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	virtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/hypervisor/kubevirt"
	simkubevirt "github.com/hyperfleet/hyperfleet/sim/kubevirt"
)

const operatorUID = "aaaaaaaa-0000-4000-8000-000000000001"

func (s *site) newProvider(config hypervisor.Config, local *rest.Config) *kubevirt.Provider {
	s.t.Helper()

	p, err := kubevirt.New(config, hypervisor.Options{OperatorUID: operatorUID}, local)
	if err != nil {
		s.t.Fatal(err)
	}

	s.t.Cleanup(p.Close)

	return p
}

func newMachineSpec() hypervisor.MachineSpec {
	return hypervisor.MachineSpec{
		Owner:    hypervisor.Owner{Namespace: "ci", Name: "claim-1", UID: "c0000000-0000-4000-8000-000000000001", Pool: "linux"},
		Hostname: "claim-1", Template: hypervisor.TemplateRef{Kind: hypervisor.TemplateImage, Name: image}, Shape: newShape(),
	}
}

func newSeed(context.Context) (hypervisor.Seed, error) {
	return hypervisor.Seed{
		UserData: []byte("#cloud-config\n{}\n"), MetaData: []byte("instance-id: x\n"), NetworkConfig: []byte("version: 2\n"),
		Files: map[string][]byte{"bootstrap-service": []byte("program")},
	}, nil
}

// advanceTo advances the machine until it has the state, and returns its spec with its id.
func (s *site) advanceTo(p *kubevirt.Provider, spec hypervisor.MachineSpec, want hypervisor.State) hypervisor.MachineSpec {
	s.t.Helper()

	s.eventually("the machine is "+string(want), func() bool {
		m, err := conformance.Advance(s.t.Context(), p, &spec, newSeed)
		if err != nil && !hypervisor.Is(err, hypervisor.Busy) {
			s.t.Fatal(err)
		}

		return m.State == want
	})

	return spec
}

func (s *site) secret() *corev1.Secret {
	s.t.Helper()

	secrets := listAll(s, &corev1.SecretList{}).Items
	if len(secrets) != 1 {
		s.t.Fatalf("there are %d secrets", len(secrets))
	}

	return &secrets[0]
}

// People and other tools rely on the objects that the provider creates on the API server.
func TestMachineOnTheAPIServer(t *testing.T) {
	t.Parallel()

	s := newSite(t, simkubevirt.Delays{Boot: 200 * time.Millisecond})
	p := s.newProvider(s.config(), env.Config)
	spec := s.advanceTo(p, newMachineSpec(), hypervisor.StateCreating)

	vm := listAll(s, &virtv1.VirtualMachineList{}).Items[0]
	if want := "claim-1-"; !strings.HasPrefix(vm.Name, want) || vm.Labels["hyperfleet.io/claim-uid"] != spec.Owner.UID {
		t.Errorf("machine %s has labels %v", vm.Name, vm.Labels)
	}

	s.eventually("the machine has its cloud-init Secret", func() bool {
		return len(listAll(s, &corev1.SecretList{}).Items) > 0 || advanceOnce(s, p, spec)
	})

	secret := s.secret()
	if !metav1.IsControlledBy(secret, &vm) {
		t.Errorf("the cloud-init Secret is owned by %v", secret.OwnerReferences)
	}

	want := map[string][]byte{
		"user-data": []byte("#cloud-config\n{}\n"), "meta-data": []byte("instance-id: x\n"),
		"network-config": []byte("version: 2\n"), "bootstrap-service": []byte("program"),
	}
	if diff := cmp.Diff(want, secret.Data); diff != "" {
		t.Errorf("cloud-init Secret (-want +got):\n%s", diff)
	}

	s.advanceTo(p, spec, hypervisor.StateRunning)

	if left := s.secret().Data; len(left) > 0 {
		t.Errorf("the cloud-init Secret of a running machine still holds %d files", len(left))
	}

	vm = listAll(s, &virtv1.VirtualMachineList{}).Items[0]
	if *vm.Spec.RunStrategy != virtv1.RunStrategyManual {
		t.Errorf("a running machine has the strategy %s", *vm.Spec.RunStrategy)
	}

	m, err := p.Get(t.Context(), hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner})
	if err != nil || m.IP == "" || m.MAC == "" || m.Node == "" {
		t.Errorf("the machine is incomplete: %+v (%v)", m, err)
	}
}

// advanceOnce advances the machine and returns false.
func advanceOnce(s *site, p *kubevirt.Provider, spec hypervisor.MachineSpec) bool {
	_, _ = conformance.Advance(s.t.Context(), p, &spec, newSeed)

	return false
}

func (s *site) eventually(description string, ok func() bool) {
	s.t.Helper()

	for deadline := time.Now().Add(waitTimeout); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("timed out: condition %q did not become true; problems %v", description, s.sim.Problems())
		}
	}
}

// A machine that has run is never started again, also if its instance is lost.
func TestRunsOnce(t *testing.T) {
	t.Parallel()

	lose := map[string]func(*site, client.ObjectKey) error{
		"its instance is force-deleted": func(s *site, key client.ObjectKey) error { return s.sim.ForceDeleteInstance(s.t.Context(), key) },
		"its guest crashes":             func(s *site, key client.ObjectKey) error { return s.sim.Crash(s.t.Context(), key) },
		"its node fails":                func(s *site, _ client.ObjectKey) error { return s.loseNodes() },
	}
	for name, end := range lose {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			s := newSite(t, simkubevirt.Delays{})
			p := s.newProvider(s.config(), env.Config)
			spec := s.advanceTo(p, newMachineSpec(), hypervisor.StateRunning)
			key, vm := s.findVM(spec.ID)

			if err := end(s, key); err != nil {
				t.Fatal(err)
			}

			s.eventually("the machine is stopped", func() bool {
				m, err := p.Get(t.Context(), hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner})

				return err == nil && m.State == hypervisor.StateStopped
			})
			s.advanceTo(p, spec, hypervisor.StateStopped)

			if starts := s.sim.StartCount(vm.UID); starts != 1 {
				t.Errorf("the machine was started %d times, want once", starts)
			}
		})
	}
}

func (s *site) loseNodes() error {
	for _, node := range s.nodes {
		if err := s.sim.FailNode(s.t.Context(), node); err != nil {
			return err
		}
	}

	return nil
}

// The message of a machine that does not start contains the reason from KubeVirt or Kubernetes.
func TestWaitingIsExplained(t *testing.T) {
	t.Parallel()

	t.Run("no capacity", func(t *testing.T) {
		t.Parallel()

		s := newSite(t, simkubevirt.Delays{})
		p := s.newProvider(s.config(), env.Config)

		for n := range 3 {
			spec := newMachineSpec()
			spec.Owner.Name, spec.Owner.UID = "big-"+string(rune('a'+n)), "big-"+string(rune('a'+n))
			spec.Shape.Memory = 200 * gib

			if n < 2 {
				s.advanceTo(p, spec, hypervisor.StateRunning)

				continue
			}

			spec = s.advanceTo(p, spec, hypervisor.StateCreating)
			s.eventuallyMessage(p, spec, "Insufficient memory")
		}
	})

	t.Run("no image", func(t *testing.T) {
		t.Parallel()

		s := newSiteWith(t, simkubevirt.Options{Images: []string{"another"}})
		p := s.newProvider(s.config(), env.Config)
		s.eventuallyMessage(p, s.advanceTo(p, newMachineSpec(), hypervisor.StateCreating), "ErrImagePull")
	})
}

func (s *site) eventuallyMessage(p *kubevirt.Provider, spec hypervisor.MachineSpec, want string) {
	s.t.Helper()
	s.eventually("the message contains "+want, func() bool {
		m, err := conformance.Advance(s.t.Context(), p, &spec, newSeed)

		return err == nil && strings.Contains(m.Message, want)
	})
}

// newAccount returns the configuration of a ServiceAccount that has only the permissions of the rules in the
// site's namespace.
func (s *site) newAccount(name string, rules ...rbacv1.PolicyRule) *rest.Config {
	s.t.Helper()

	meta := metav1.ObjectMeta{Namespace: s.namespace, Name: name}
	objects := []client.Object{
		&rbacv1.Role{ObjectMeta: meta, Rules: rules},
		&rbacv1.RoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: s.namespace, Name: name}},
		},
	}

	for _, obj := range objects {
		if err := env.Client.Create(s.t.Context(), obj); err != nil {
			s.t.Fatal(err)
		}
	}

	return env.ServiceAccount(s.t, s.namespace, name)
}

func newRule(group, kind string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{kind}, Verbs: verbs}
}

func TestCheck(t *testing.T) {
	t.Parallel()

	s := newSite(t, simkubevirt.Delays{})

	info, err := s.newProvider(s.config(), env.Config).Check(t.Context())
	if err != nil || info.Product != "KubeVirt" || len(info.Nodes) != 2 || !info.Nodes[0].Online || info.NodesHidden {
		t.Errorf("got %+v (%v)", info, err)
	}

	vms := newRule("kubevirt.io", "virtualmachines", "get", "list", "watch", "create", "patch", "delete")
	vmis := newRule("kubevirt.io", "virtualmachineinstances", "get", "list", "watch", "delete")
	secrets := newRule("", "secrets", "get", "list", "create", "patch", "delete")

	// With only the required permissions, everything works, and a warning reports that nodes are hidden.
	restricted := s.newProvider(s.config(), s.newAccount("few", vms, vmis, secrets))

	info, err = restricted.Check(t.Context())
	if err != nil || !info.NodesHidden || !strings.Contains(strings.Join(info.Warnings, ";"), "do not permit listing nodes") {
		t.Errorf("got %+v (%v)", info, err)
	}

	s.advanceTo(restricted, newMachineSpec(), hypervisor.StateRunning)

	if capacity, err := restricted.Capacity(t.Context()); err != nil || len(capacity.Nodes) != 0 {
		t.Errorf("got %+v (%v)", capacity, err)
	}

	otherNamespace := s.config()
	otherNamespace.Namespace = "no-such-namespace"

	unreachable := rest.CopyConfig(env.Config)
	unreachable.Host = "https://127.0.0.1:1"

	distrusted := rest.CopyConfig(env.Config)
	distrusted.CAData, distrusted.CAFile = nil, ""

	unauthorized := rest.CopyConfig(env.Config)
	unauthorized.CertData, unauthorized.KeyData, unauthorized.CertFile, unauthorized.KeyFile = nil, nil, "", ""
	unauthorized.BearerToken = "wrong"

	cases := []struct {
		name     string
		config   hypervisor.Config
		local    *rest.Config
		kind     hypervisor.Kind
		wantText string
	}{
		{"no patch, no secrets", s.config(), s.newAccount("less", vmis, newRule("kubevirt.io", "virtualmachines", "get", "list", "watch", "create", "delete")),
			hypervisor.Rejected, "patch on virtualmachines.kubevirt.io; get, list, create, patch, delete on secrets"},
		{"no namespace", otherNamespace, env.Config, hypervisor.Rejected, "namespace \"no-such-namespace\" for machines does not exist"},
		{"an unreachable API server", s.config(), unreachable, hypervisor.Unavailable, "refused"},
		{"another certificate", s.config(), distrusted, hypervisor.Rejected, "certificate"},
		{"a wrong token", s.config(), unauthorized, hypervisor.Rejected, "Unauthorized"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()

			_, err := s.newProvider(c.config, c.local).Check(t.Context())
			if hypervisor.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.wantText) {
				t.Errorf("want %s with %q, got %s: %v", c.kind, c.wantText, hypervisor.KindOf(err), err)
			}
		})
	}
}

func TestResolve(t *testing.T) {
	t.Parallel()

	s := newSite(t, simkubevirt.Delays{})
	p := s.newProvider(s.config(), env.Config)

	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "disk"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Gi")},
			},
		},
	}
	if err := env.Client.Create(t.Context(), claim); err != nil {
		t.Fatal(err)
	}

	volume := hypervisor.TemplateRef{Kind: hypervisor.TemplateVolume, Name: "disk"}
	with := func(change func(*hypervisor.Shape)) hypervisor.Shape {
		out := newShape()
		change(&out)

		return out
	}

	cases := []struct {
		name     string
		ref      hypervisor.TemplateRef
		want     hypervisor.Shape
		kind     hypervisor.Kind
		wantText string
	}{
		{"an image", s.template(), newShape(), "", ""},
		{"a disk", volume, newShape(), "", ""},
		{"a disk that grows", volume, with(func(x *hypervisor.Shape) { x.Disk = 20 * gib }), "", ""},
		{"a disk that shrinks", volume, with(func(x *hypervisor.Shape) { x.Disk = gib }), hypervisor.Rejected, "a disk cannot shrink"},
		{"an image that grows", s.template(), with(func(x *hypervisor.Shape) { x.Disk = gib }), hypervisor.Rejected, "size of its image"},
		{
			"no such disk", hypervisor.TemplateRef{Kind: hypervisor.TemplateVolume, Name: "none"}, newShape(),
			hypervisor.NotFound, "PersistentVolumeClaim " + s.namespace + "/none does not exist",
		},
		{
			"no such source", hypervisor.TemplateRef{Kind: hypervisor.TemplateDataSource, Name: "none", Namespace: "images"}, newShape(),
			hypervisor.NotFound, "DataSource images/none does not exist",
		},
		{"a number", hypervisor.TemplateRef{Kind: "VMID", ID: 7}, newShape(), hypervisor.Rejected, "no templates of kind"},
		{
			"no such storage", volume, with(func(x *hypervisor.Shape) { x.Storage = "none" }),
			hypervisor.NotFound, "StorageClass none does not exist",
		},
		{
			"no such network", s.template(), with(func(x *hypervisor.Shape) { x.Bridge = "networks/none" }),
			hypervisor.NotFound, "NetworkAttachmentDefinition networks/none does not exist",
		},
		{"a VLAN", s.template(), with(func(x *hypervisor.Shape) { x.VLAN = 7 }), hypervisor.Rejected, "NetworkAttachmentDefinition"},
		{"too many cores", s.template(), with(func(x *hypervisor.Shape) { x.CPU = 65 }), hypervisor.Rejected, "none of the 2 usable nodes"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()

			found, err := p.Resolve(t.Context(), c.ref, c.want)
			if c.kind == "" {
				if err != nil || len(found) != 1 {
					t.Errorf("got %v (%v)", found, err)
				}

				return
			}

			if hypervisor.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.wantText) {
				t.Errorf("want %s with %q, got %s: %v", c.kind, c.wantText, hypervisor.KindOf(err), err)
			}
		})
	}
}

// A kubeconfig that names files is rejected as a mistake of the user. Package kubeconfig tests the other
// cases.
func TestKubeconfigIsSelfContained(t *testing.T) {
	t.Parallel()

	const text = `{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}],
		clusters: [{name: a, cluster: {server: "https://127.0.0.1:1"}}], users: [{name: a, user: {tokenFile: /run/token}}]}`

	_, err := kubevirt.New(hypervisor.Config{Name: "lab", Kubeconfig: []byte(text)},
		hypervisor.Options{OperatorUID: operatorUID}, nil)
	if !hypervisor.Is(err, hypervisor.Rejected) || !strings.Contains(err.Error(), "refers to files") {
		t.Errorf("a kubeconfig that names files: %v", err)
	}
}

func TestOperation(t *testing.T) {
	t.Parallel()

	cases := []struct{ method, url, want string }{
		{"GET", "/apis/kubevirt.io/v1/namespaces/a/virtualmachines/b", "GET /apis/kubevirt.io/v1/virtualmachines/{name}"},
		{"GET", "/apis/kubevirt.io/v1/namespaces/a/virtualmachines?watch=true", "WATCH /apis/kubevirt.io/v1/virtualmachines"},
		{"POST", "/api/v1/namespaces/a/secrets", "POST /api/v1/secrets"},
		{"GET", "/api/v1/namespaces/a", "GET /api/v1/namespaces/{name}"},
		{"GET", "/api/v1/nodes", "GET /api/v1/nodes"},
		{"GET", "/version", "GET /version"},
	}
	for _, c := range cases {
		r, err := http.NewRequestWithContext(t.Context(), c.method, "https://127.0.0.1"+c.url, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}

		if got := kubevirt.OperationName(r); got != c.want {
			t.Errorf("%s %s is named %q, want %q", c.method, c.url, got, c.want)
		}
	}
}
