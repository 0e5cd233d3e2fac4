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

func (s *site) provider(config hypervisor.Config, local *rest.Config) *kubevirt.Provider {
	s.t.Helper()

	p, err := kubevirt.New(config, hypervisor.Options{OperatorUID: operatorUID}, local)
	if err != nil {
		s.t.Fatal(err)
	}

	s.t.Cleanup(p.Close)

	return p
}

func machineSpec() hypervisor.MachineSpec {
	return hypervisor.MachineSpec{
		Owner:    hypervisor.Owner{Namespace: "ci", Name: "claim-1", UID: "c0000000-0000-4000-8000-000000000001", Pool: "linux"},
		Hostname: "claim-1", Template: hypervisor.TemplateRef{Kind: hypervisor.TemplateImage, Name: image}, Shape: shape(),
	}
}

func seed(context.Context) (hypervisor.Seed, error) {
	return hypervisor.Seed{
		UserData: []byte("#cloud-config\n{}\n"), MetaData: []byte("instance-id: x\n"), NetworkConfig: []byte("version: 2\n"),
		Files: map[string][]byte{"bootstrap-service": []byte("program")},
	}, nil
}

// start has a machine made until it is in a state, and gives its spec with its id.
func (s *site) start(p *kubevirt.Provider, spec hypervisor.MachineSpec, want hypervisor.State) hypervisor.MachineSpec {
	s.t.Helper()

	s.eventually("the machine is "+string(want), func() bool {
		m, err := conformance.Further(s.t.Context(), p, &spec, seed)
		if err != nil && !hypervisor.Is(err, hypervisor.Busy) {
			s.t.Fatal(err)
		}

		return m.State == want
	})

	return spec
}

func (s *site) secret() *corev1.Secret {
	s.t.Helper()

	secrets := all(s, &corev1.SecretList{}).Items
	if len(secrets) != 1 {
		s.t.Fatalf("there are %d secrets", len(secrets))
	}

	return &secrets[0]
}

// What stands on the API server is what people and other tools rely on.
func TestMachineOnTheAPIServer(t *testing.T) {
	t.Parallel()

	s := newSite(t, simkubevirt.Delays{Boot: 200 * time.Millisecond})
	p := s.provider(s.config(), env.Config)
	spec := s.start(p, machineSpec(), hypervisor.StateCreating)

	vm := all(s, &virtv1.VirtualMachineList{}).Items[0]
	if want := "claim-1-"; !strings.HasPrefix(vm.Name, want) || vm.Labels["hyperfleet.io/claim-uid"] != spec.Owner.UID {
		t.Errorf("machine %s has labels %v", vm.Name, vm.Labels)
	}

	s.eventually("it has its cloud-init Secret", func() bool { return len(all(s, &corev1.SecretList{}).Items) > 0 || nudge(s, p, spec) })

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

	s.start(p, spec, hypervisor.StateRunning)

	if left := s.secret().Data; len(left) > 0 {
		t.Errorf("the cloud-init Secret of a running machine still holds %d files", len(left))
	}

	vm = all(s, &virtv1.VirtualMachineList{}).Items[0]
	if *vm.Spec.RunStrategy != virtv1.RunStrategyManual {
		t.Errorf("a running machine has the strategy %s", *vm.Spec.RunStrategy)
	}

	m, err := p.Get(t.Context(), hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner})
	if err != nil || m.IP == "" || m.MAC == "" || m.Node == "" {
		t.Errorf("the machine is incomplete: %+v (%v)", m, err)
	}
}

func nudge(s *site, p *kubevirt.Provider, spec hypervisor.MachineSpec) bool {
	_, _ = conformance.Further(s.t.Context(), p, &spec, seed)

	return false
}

func (s *site) eventually(what string, ok func() bool) {
	s.t.Helper()

	for deadline := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("never came true: %s; problems %v", what, s.sim.Problems())
		}
	}
}

// A machine that has run is not started again, however its instance was lost.
func TestRunsOnce(t *testing.T) {
	t.Parallel()

	lose := map[string]func(*site, client.ObjectKey) error{
		"its instance is deleted by force": func(s *site, key client.ObjectKey) error { return s.sim.LoseInstance(s.t.Context(), key) },
		"it crashes":                       func(s *site, key client.ObjectKey) error { return s.sim.Crash(s.t.Context(), key) },
		"its node dies":                    func(s *site, _ client.ObjectKey) error { return s.loseNodes() },
	}
	for name, end := range lose {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			s := newSite(t, simkubevirt.Delays{})
			p := s.provider(s.config(), env.Config)
			spec := s.start(p, machineSpec(), hypervisor.StateRunning)
			key, vm := s.named(spec.ID)

			if err := end(s, key); err != nil {
				t.Fatal(err)
			}

			s.eventually("it is off", func() bool {
				m, err := p.Get(t.Context(), hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner})

				return err == nil && m.State == hypervisor.StateStopped
			})
			s.start(p, spec, hypervisor.StateStopped)

			if starts := s.sim.Starts(vm.UID); starts != 1 {
				t.Errorf("it was started %d times", starts)
			}
		})
	}
}

func (s *site) loseNodes() error {
	for _, node := range s.nodes {
		if err := s.sim.LoseNode(s.t.Context(), node); err != nil {
			return err
		}
	}

	return nil
}

// What keeps a machine from starting is told in KubeVirt's and Kubernetes' words.
func TestWaitingIsExplained(t *testing.T) {
	t.Parallel()

	t.Run("no room", func(t *testing.T) {
		t.Parallel()

		s := newSite(t, simkubevirt.Delays{})
		p := s.provider(s.config(), env.Config)

		for n := range 3 {
			spec := machineSpec()
			spec.Owner.Name, spec.Owner.UID = "big-"+string(rune('a'+n)), "big-"+string(rune('a'+n))
			spec.Shape.Memory = 200 * gib

			if n < 2 {
				s.start(p, spec, hypervisor.StateRunning)

				continue
			}

			spec = s.start(p, spec, hypervisor.StateCreating)
			s.message(p, spec, "Insufficient memory")
		}
	})

	t.Run("no image", func(t *testing.T) {
		t.Parallel()

		s := newSiteWith(t, simkubevirt.Options{Images: []string{"another"}})
		p := s.provider(s.config(), env.Config)
		s.message(p, s.start(p, machineSpec(), hypervisor.StateCreating), "ErrImagePull")
	})
}

func (s *site) message(p *kubevirt.Provider, spec hypervisor.MachineSpec, want string) {
	s.t.Helper()
	s.eventually("the message says "+want, func() bool {
		m, err := conformance.Further(s.t.Context(), p, &spec, seed)

		return err == nil && strings.Contains(m.Message, want)
	})
}

// reader is an account that may do only what its rules say in the site's namespace.
func (s *site) account(name string, rules ...rbacv1.PolicyRule) *rest.Config {
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

func rule(group, kind string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{kind}, Verbs: verbs}
}

func TestCheck(t *testing.T) {
	t.Parallel()

	s := newSite(t, simkubevirt.Delays{})

	info, err := s.provider(s.config(), env.Config).Check(t.Context())
	if err != nil || info.Product != "KubeVirt" || len(info.Nodes) != 2 || !info.Nodes[0].Online || info.NodesHidden {
		t.Errorf("got %+v (%v)", info, err)
	}

	vms := rule("kubevirt.io", "virtualmachines", "get", "list", "watch", "create", "patch", "delete")
	vmis := rule("kubevirt.io", "virtualmachineinstances", "get", "list", "watch", "delete")
	secrets := rule("", "secrets", "get", "list", "create", "patch", "delete")

	// Only what is needed: everything works, nodes are hidden, and it says so.
	few := s.provider(s.config(), s.account("few", vms, vmis, secrets))

	info, err = few.Check(t.Context())
	if err != nil || !info.NodesHidden || !strings.Contains(strings.Join(info.Warnings, ";"), "nodes can't be seen") {
		t.Errorf("got %+v (%v)", info, err)
	}

	s.start(few, machineSpec(), hypervisor.StateRunning)

	if capacity, err := few.Capacity(t.Context()); err != nil || len(capacity.Nodes) != 0 {
		t.Errorf("got %+v (%v)", capacity, err)
	}

	elsewhere := s.config()
	elsewhere.Namespace = "no-such-namespace"

	unreachable := rest.CopyConfig(env.Config)
	unreachable.Host = "https://127.0.0.1:1"

	distrusted := rest.CopyConfig(env.Config)
	distrusted.CAData, distrusted.CAFile = nil, ""

	stranger := rest.CopyConfig(env.Config)
	stranger.CertData, stranger.KeyData, stranger.CertFile, stranger.KeyFile = nil, nil, "", ""
	stranger.BearerToken = "wrong"

	cases := []struct {
		name   string
		config hypervisor.Config
		local  *rest.Config
		kind   hypervisor.Kind
		says   string
	}{
		{"no patch, no secrets", s.config(), s.account("less", vmis, rule("kubevirt.io", "virtualmachines", "get", "list", "watch", "create", "delete")),
			hypervisor.Rejected, "lack patch on virtualmachines.kubevirt.io; get, list, create, patch, delete on secrets"},
		{"no namespace", elsewhere, env.Config, hypervisor.Rejected, "there is no namespace \"no-such-namespace\""},
		{"nobody there", s.config(), unreachable, hypervisor.Unavailable, "refused"},
		{"another certificate", s.config(), distrusted, hypervisor.Rejected, "certificate"},
		{"a wrong token", s.config(), stranger, hypervisor.Rejected, "Unauthorized"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()

			_, err := s.provider(c.config, c.local).Check(t.Context())
			if hypervisor.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.says) {
				t.Errorf("want %s that says %q, got %s: %v", c.kind, c.says, hypervisor.KindOf(err), err)
			}
		})
	}
}

func TestResolve(t *testing.T) {
	t.Parallel()

	s := newSite(t, simkubevirt.Delays{})
	p := s.provider(s.config(), env.Config)

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
		out := shape()
		change(&out)

		return out
	}

	cases := []struct {
		name string
		ref  hypervisor.TemplateRef
		want hypervisor.Shape
		kind hypervisor.Kind
		says string
	}{
		{"an image", s.template(), shape(), "", ""},
		{"a disk", volume, shape(), "", ""},
		{"a disk that grows", volume, with(func(x *hypervisor.Shape) { x.Disk = 20 * gib }), "", ""},
		{"a disk that shrinks", volume, with(func(x *hypervisor.Shape) { x.Disk = gib }), hypervisor.Rejected, "disks only grow"},
		{"an image that grows", s.template(), with(func(x *hypervisor.Shape) { x.Disk = gib }), hypervisor.Rejected, "size of its image"},
		{
			"no such disk", hypervisor.TemplateRef{Kind: hypervisor.TemplateVolume, Name: "none"}, shape(),
			hypervisor.NotFound, "there is no PersistentVolumeClaim " + s.namespace + "/none",
		},
		{
			"no such source", hypervisor.TemplateRef{Kind: hypervisor.TemplateDataSource, Name: "none", Namespace: "images"}, shape(),
			hypervisor.NotFound, "there is no DataSource images/none",
		},
		{"a number", hypervisor.TemplateRef{Kind: "VMID", ID: 7}, shape(), hypervisor.Rejected, "no templates of kind"},
		{
			"no such storage", volume, with(func(x *hypervisor.Shape) { x.Storage = "none" }),
			hypervisor.NotFound, "there is no StorageClass none",
		},
		{
			"no such network", s.template(), with(func(x *hypervisor.Shape) { x.Bridge = "networks/none" }),
			hypervisor.NotFound, "there is no NetworkAttachmentDefinition networks/none",
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

			if hypervisor.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.says) {
				t.Errorf("want %s that says %q, got %s: %v", c.kind, c.says, hypervisor.KindOf(err), err)
			}
		})
	}
}

// A kubeconfig that reaches out of itself is refused as the user's mistake; the rows are those of
// package kubeconfig.
func TestKubeconfigIsSelfContained(t *testing.T) {
	t.Parallel()

	const text = `{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}],
		clusters: [{name: a, cluster: {server: "https://127.0.0.1:1"}}], users: [{name: a, user: {tokenFile: /run/token}}]}`

	_, err := kubevirt.New(hypervisor.Config{Name: "lab", Kubeconfig: []byte(text)},
		hypervisor.Options{OperatorUID: operatorUID}, nil)
	if !hypervisor.Is(err, hypervisor.Rejected) || !strings.Contains(err.Error(), "names files") {
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

		if got := kubevirt.Operation(r); got != c.want {
			t.Errorf("%s %s is named %q, want %q", c.method, c.url, got, c.want)
		}
	}
}
