// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/capture"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

const (
	// objectsOfTenant is how many objects a tenant makes in one run.
	objectsOfTenant = 24
	quotaOfTenant   = 3
	// forgedPrefix begins the names of claims whose status the tenant writes.
	forgedPrefix = "forged"
	// Values of Secrets that no server, object, event or log may have.
	closedCanary, elsewhereCanary = "canary-closed-7f3a91", "canary-elsewhere-c20b54"
)

// hostile is a fleet whose namespace is a tenant's, beside a neighbour.
type hostile struct {
	*fleet.Fleet

	t         *testing.T
	tenant    client.Client
	neighbour string
	// platform is the way to the CI platform that is listed, and sees what is sent there.
	platform *httptest.Server
	sent     capture.Buffer
	logged   capture.Buffer
	// ears are servers that nobody allowed.
	ears []*ear
	// closed is a hypervisor that is open to the neighbour alone.
	closed *fleet.Site
	dice   *rand.Rand
	serial int
	made   []step.Object
	theirs []client.Object
}

func newHostile(t *testing.T) *hostile {
	t.Helper()

	h := &hostile{Fleet: fleet.New(t, env, fleet.Options{}), t: t, neighbour: env.Namespace(t), ears: []*ear{listen(t), listen(t)}}
	h.Neighbours, h.Log = []string{h.neighbour}, &h.logged

	target, err := url.Parse(h.GitHub.URL)
	if err != nil {
		t.Fatal(err)
	}

	forward := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	h.platform = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(&h.sent, r.URL, r.Header)
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(h.platform.Close)

	h.Runners.PlatformURLs = []string{h.platform.URL}

	cluster := h.NewCluster()
	cluster.Spec.AllowedNamespaces = []v1alpha1.NamespaceAccess{{Names: []string{h.neighbour}}, {
		Names: []string{h.Namespace}, Templates: []string{pve.DefaultTemplate}, Storages: []string{"local-lvm"}, Networks: []string{"vmbr0"},
		VLANs: []v1alpha1.VLANRange{{Min: 100, Max: 109}}, Addresses: []string{"10.20.1.0/24"},
		Quota: &v1alpha1.NamespaceQuota{Machines: new(int32(quotaOfTenant))},
	}}
	h.CreateCluster(cluster)
	h.closed = h.NewSite("closed", fleet.Model(), func(c *v1alpha1.HypervisorCluster) {
		c.Spec.AllowedNamespaces = []v1alpha1.NamespaceAccess{{Names: []string{h.neighbour}}}
	})

	h.furnish()
	h.letIn()
	h.Start()

	h.Eventually("the neighbour has its machine", func() (bool, string) {
		var claim v1alpha1.MachineClaim

		err := h.Client.Get(t.Context(), client.ObjectKey{Namespace: h.neighbour, Name: "neighbour"}, &claim)

		return err == nil && claim.Status.BootstrapInfo != nil && claim.Status.BootstrapInfo.RunnerID != "", step.WhyNot(&claim)
	})

	return h
}

// furnish makes what is the neighbour's and the platform team's.
func (h *hostile) furnish() {
	host := strings.TrimPrefix(h.platform.URL, "http://")

	for name, secret := range map[string]struct{ namespaces, servers, value string }{
		"closed":    {"", host, closedCanary},
		"elsewhere": {h.Namespace, "git.example.com", elsewhereCanary},
		"shared":    {h.Namespace, host, githubtest.PAT},
	} {
		h.Create(&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: h.neighbour, Name: name, Annotations: map[string]string{
				v1alpha1.AnnotationAllowedNamespaces: secret.namespaces, v1alpha1.AnnotationAllowedServers: secret.servers,
			}},
			StringData: map[string]string{"pat": secret.value, "secret": secret.value},
		})
	}

	template, claim := h.NewTemplate(), h.NewClaim("neighbour")
	template.Spec.Bootstrap.Config.GitHub.APIURL = h.platform.URL
	template.Spec.Bootstrap.Config.GitHub.Credentials.SecretKeyRef.Name = "shared"
	pool := h.NewPool(2)
	pool.Spec.Workload.Webhook.Secret.SecretKeyRef.Name = "closed"
	job := h.job("neighbour")

	for _, object := range []client.Object{template, claim, pool, job} {
		object.SetNamespace(h.neighbour)
		h.Create(object)
		h.theirs = append(h.theirs, object)
	}
}

// letIn gives the tenant every right on the kinds of the group in its namespace.
func (h *hostile) letIn() {
	meta := metav1.ObjectMeta{Namespace: h.Namespace, Name: "team"}
	h.Create(&rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"*"}, Verbs: []string{"*"},
	}}})
	h.Create(&rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: h.Namespace}},
	})

	var err error
	if h.tenant, err = client.New(h.Env.User(h.t, "mallory", h.Namespace), client.Options{Scheme: h.Client.Scheme()}); err != nil {
		h.t.Fatal(err)
	}
}

func pick[T any](h *hostile, from ...T) T { return from[h.dice.IntN(len(from))] }

// server is the platform, in one of four cases, or one that nobody allowed, in all the ways
// that URLs have to say so.
func (h *hostile) server() string {
	bad := strings.TrimPrefix(pick(h, h.ears...).url, "http://")
	good := strings.TrimPrefix(h.platform.URL, "http://")
	_, port, _ := strings.Cut(bad, ":")

	return pick(h, h.platform.URL, "http://"+bad, "https://"+bad, "http://localhost:"+port, "http://"+good+"@"+bad,
		"http://"+bad+"/"+good, "http://[::ffff:127.0.0.1]:"+port, "http://2130706433:"+port, "http://"+bad+"#"+good)
}

// secret is a key of a Secret that is the tenant's to use, or not.
func (h *hostile) secret(key string) v1alpha1.SecretValueSource {
	return pick(h,
		theirsNamed(h.neighbour, "shared", key), theirsNamed(h.neighbour, "closed", key), theirsNamed(h.neighbour, "elsewhere", key),
		theirsNamed("", "github", key), theirsNamed("", "proxmox", "tokenSecret"), theirsNamed("kube-system", "closed", key))
}

func theirsNamed(namespace, name, key string) v1alpha1.SecretValueSource {
	return v1alpha1.SecretValueSource{SecretKeyRef: v1alpha1.SecretKeySelector{Namespace: namespace, Name: name, Key: key}}
}

func (h *hostile) name(kind string) metav1.ObjectMeta {
	h.serial++

	return metav1.ObjectMeta{Namespace: h.Namespace, Name: fmt.Sprintf("%s-%d", kind, h.serial), Labels: pick(h, nil, map[string]string{
		v1alpha1.LabelRunnerPool: "neighbour", "team": h.neighbour,
	})}
}

func (h *hostile) template() *v1alpha1.HypervisorMachineTemplate {
	out := h.NewTemplate()
	out.ObjectMeta = h.name("template")
	spec := &out.Spec
	spec.HypervisorClusterRef.Name = pick(h, h.Cluster, h.Cluster, h.closed.Cluster.Name, "no-such-cluster")
	spec.Template.Proxmox.TemplateName = pick(h, pve.DefaultTemplate, pve.DefaultTemplate, "secret-template")
	spec.Template.Proxmox.Storage = pick(h, "", "local-lvm", "local")
	spec.Network = pick(h, nil, &v1alpha1.MachineNetwork{
		Mode: v1alpha1.NetworkModeDHCP, Bridge: pick(h, "", "vmbr0", "vmbr1"), VLAN: pick(h, nil, new(int32(100)), new(int32(7))),
	})
	spec.CloudInit = pick(h, nil, &v1alpha1.CloudInit{UserData: "#cloud-config\nruncmd: [\"true {{.Claim.Name}}\"]\n"})
	spec.Bootstrap.Method = pick(h, v1alpha1.BootstrapRunnerToken, v1alpha1.BootstrapCallback)

	token := h.secret("pat")
	config := spec.Bootstrap.Config

	switch h.dice.IntN(6) {
	case 5:
		config.GitHub, config.Gitea = nil, &v1alpha1.GiteaBootstrap{Credentials: token}
	case 4:
		config.GitHub, config.Forgejo = nil, &v1alpha1.GiteaBootstrap{Credentials: token}
	case 0:
		config.GitHub = nil
		config.GitLab = &v1alpha1.GitLabBootstrap{Credentials: token}
	case 1:
		config.GitHub = nil
		config.Buildkite = &v1alpha1.BuildkiteBootstrap{Credentials: token, Endpoint: h.server()}
	default:
		config.GitHub.APIURL, config.GitHub.Credentials = h.server(), &token
		config.GitHub.Registration = pick(h, "", v1alpha1.RegistrationJIT, v1alpha1.RegistrationToken)
		config.GitHub.RegistrationURLs = pick(h, nil, &v1alpha1.GitHubURLs{Repository: h.server() + "/{owner}/{repo}"})

		if h.dice.IntN(3) == 0 {
			config.GitHub.Credentials = nil
			config.GitHub.App = &v1alpha1.GitHubApp{AppID: token, InstallationID: token, PrivateKey: token}
		}
	}

	return out
}

func (h *hostile) workload() v1alpha1.Workload {
	all := []v1alpha1.Workload{
		{Type: v1alpha1.WorkloadGitHubActions, Config: &v1alpha1.WorkloadConfig{GitHub: &v1alpha1.GitHubActionsConfig{
			Labels: []string{"linux"}, ScaleSet: pick(h, "", "set"),
		}}},
		{Type: v1alpha1.WorkloadGitLabCI, Config: &v1alpha1.WorkloadConfig{GitLab: &v1alpha1.GitLabCIConfig{URL: h.server(), ProjectID: "acme/shop"}}},
		{Type: v1alpha1.WorkloadBuildkite, Config: &v1alpha1.WorkloadConfig{Buildkite: &v1alpha1.BuildkiteConfig{Organization: "acme"}}},
		{Type: v1alpha1.WorkloadGiteaActions, Config: &v1alpha1.WorkloadConfig{Gitea: &v1alpha1.GiteaConfig{
			URL: h.server(), Repository: "acme/shop", Labels: []string{"linux"},
		}}},
		{Type: v1alpha1.WorkloadForgejoActions, Config: &v1alpha1.WorkloadConfig{Forgejo: &v1alpha1.GiteaConfig{
			URL: h.server(), Repository: "acme/shop", Labels: []string{"linux"},
		}}},
		{Type: v1alpha1.WorkloadGeneric, Config: &v1alpha1.WorkloadConfig{Generic: &v1alpha1.GenericConfig{
			Source: "nightly", Labels: []string{"linux"}, Command: []string{"/usr/bin/true"},
		}}},
	}

	out := pick(h, all...)
	if h.dice.IntN(2) == 0 {
		out.Webhook = &v1alpha1.Webhook{Secret: h.secret("secret")}
	}

	return out
}

// templateName is of a template that the tenant made, or of the neighbour's.
func (h *hostile) templateName() string {
	names := []string{fleet.Template}

	for _, object := range h.made {
		if strings.HasPrefix(object.GetName(), "template-") {
			names = append(names, object.GetName())
		}
	}

	return pick(h, names...)
}

func (h *hostile) job(name string) *v1alpha1.RunnerJob {
	return &v1alpha1.RunnerJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: h.Namespace, Name: name},
		Spec: v1alpha1.RunnerJobSpec{
			Platform: v1alpha1.WorkloadGeneric, ID: name, Name: name, Labels: []string{"linux"}, State: v1alpha1.JobQueued, Queue: "nightly",
		},
	}
}

// object is anything of any kind that a tenant may make.
func (h *hostile) object() step.Object {
	switch h.dice.IntN(8) {
	case 0, 1, 2:
		return h.template()
	case 3, 4:
		pool := h.NewPool(int32(h.dice.IntN(3)))
		pool.ObjectMeta = h.name("pool")
		pool.Spec.TemplateRef.Name, pool.Spec.Workload = h.templateName(), h.workload()

		return pool
	case 5:
		job := h.job("")
		job.ObjectMeta = h.name("job")
		job.Spec.ID = pick(h, "neighbour", job.Name)
		job.Spec.Platform = pick(h, v1alpha1.WorkloadGeneric, v1alpha1.WorkloadGitHubActions)
		job.Spec.RunnerName = pick(h, "", "neighbour")

		return job
	default:
		claim := h.NewClaim("")
		claim.ObjectMeta = h.name("claim")
		claim.Spec.TemplateRef.Name, claim.Spec.WorkloadConfig = h.templateName(), h.workload()

		return claim
	}
}

// corners are claims, each with a template of its own, of which each is one thing away from
// what the tenant may have.
func (h *hostile) corners() []step.Object {
	shared := theirsNamed(h.neighbour, "shared", "pat")

	var out []step.Object

	for _, change := range []func(*v1alpha1.HypervisorMachineTemplateSpec, *v1alpha1.GitHubBootstrap){
		func(*v1alpha1.HypervisorMachineTemplateSpec, *v1alpha1.GitHubBootstrap) {},
		func(_ *v1alpha1.HypervisorMachineTemplateSpec, g *v1alpha1.GitHubBootstrap) { g.APIURL = h.ears[0].url },
		func(_ *v1alpha1.HypervisorMachineTemplateSpec, g *v1alpha1.GitHubBootstrap) {
			g.Credentials = new(theirsNamed(h.neighbour, "closed", "pat"))
		},
		func(_ *v1alpha1.HypervisorMachineTemplateSpec, g *v1alpha1.GitHubBootstrap) {
			g.Credentials = new(theirsNamed(h.neighbour, "elsewhere", "pat"))
		},
		func(s *v1alpha1.HypervisorMachineTemplateSpec, _ *v1alpha1.GitHubBootstrap) {
			s.HypervisorClusterRef.Name = h.closed.Cluster.Name
		},
		func(s *v1alpha1.HypervisorMachineTemplateSpec, _ *v1alpha1.GitHubBootstrap) {
			s.Network = &v1alpha1.MachineNetwork{Mode: v1alpha1.NetworkModeDHCP, Bridge: "vmbr0", VLAN: new(int32(7))}
		},
	} {
		template, claim := h.NewTemplate(), h.NewClaim("")
		template.ObjectMeta, claim.ObjectMeta = h.name("template"), h.name("claim")
		claim.Spec.TemplateRef.Name = template.Name
		template.Spec.Bootstrap.Config.GitHub.APIURL, template.Spec.Bootstrap.Config.GitHub.Credentials = h.platform.URL, &shared
		change(&template.Spec, template.Spec.Bootstrap.Config.GitHub)
		out = append(out, template, claim)
	}

	// Its template is one that the tenant may use.
	forged := h.NewClaim("")
	forged.ObjectMeta = h.name(forgedPrefix)
	forged.Spec.TemplateRef.Name = out[0].GetName()

	return append(out, forged)
}

// forge is a claim's status that names a machine on the hypervisor of others, and another's runner.
func (h *hostile) forge(claim client.Object) error {
	status := fmt.Sprintf(`{"status":{"vmRef":{"hypervisorCluster":%q,"vmId":"%d","node":%q,"operatorUID":%q},`+
		`"networkInfo":{"hostname":"forged"},"bootstrapInfo":{"runnerName":"neighbour"}}}`,
		h.closed.Cluster.Name, 10000+h.serial, fleet.Model().Nodes[0].Name, h.OperatorUID)

	return h.tenant.Status().Patch(h.t.Context(), claim, client.RawPatch(types.MergePatchType, []byte(status)))
}

// looked says whether the operator has had a look at an object.
func looked(object step.Object) bool { return len(*object.StatusConditions()) > 0 }

// attack makes objects, and waits until the operator has looked at all that were taken. It
// gives what became of it that must not.
func (h *hostile) attack(seed int64) string {
	h.dice, h.made = rand.New(rand.NewPCG(uint64(seed), 1)), nil

	// Nobody gets at what is not the tenant's by asking the API server.
	for _, object := range h.theirs {
		if err := h.tenant.Delete(h.t.Context(), object); !apierrors.IsForbidden(err) {
			return fmt.Sprintf("the tenant deletes %s: %v", object.GetName(), err)
		}
	}

	corners := h.corners()
	heard := &v1alpha1.RunnerJobBatch{
		ObjectMeta: h.name("batch"), Spec: v1alpha1.RunnerJobBatchSpec{Jobs: []v1alpha1.RunnerJobSpec{h.job("neighbour").Spec}},
	}

	if err := h.tenant.Create(h.t.Context(), heard); err != nil {
		return err.Error()
	}

	for i := range objectsOfTenant + len(corners) {
		var object step.Object
		if i < len(corners) {
			object = corners[i]
		} else {
			object = h.object()
		}

		err := h.tenant.Create(h.t.Context(), object)
		if err == nil {
			h.made = append(h.made, object)
		}

		if strings.HasPrefix(object.GetName(), forgedPrefix) && err == nil {
			err = h.forge(object)
		}

		if err != nil && !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
			return err.Error()
		}
	}

	h.Eventually("the operator has looked at everything", func() (bool, string) {
		for _, object := range h.made {
			err := h.Client.Get(h.t.Context(), client.ObjectKeyFromObject(object), object)
			if err == nil && !looked(object) {
				return false, object.GetName()
			}
		}

		return true, ""
	})

	wrong := h.reached()

	for _, object := range h.made {
		if err := client.IgnoreNotFound(h.tenant.Delete(h.t.Context(), object)); err != nil {
			return err.Error()
		}
	}

	return strings.Join(append(wrong, h.reached()...), "; ")
}

// reached says what the tenant reached that is not its own.
func (h *hostile) reached() []string {
	var out []string

	for _, e := range h.ears {
		if calls := e.heard(); calls > 0 {
			out = append(out, fmt.Sprintf("a server that nobody allowed was called %d times", calls))
		}
	}

	for _, vm := range h.closed.PVE.Snapshot().VMs {
		if !vm.Foreign {
			out = append(out, fmt.Sprintf("VM %d is on the hypervisor of others", vm.VMID))
		}
	}

	told := map[string]string{"the platform": h.sent.String(), "the log": h.logged.String(), "objects": h.written()}
	for where, text := range told {
		for _, canary := range []string{closedCanary, elsewhereCanary} {
			if strings.Contains(text, canary) {
				out = append(out, fmt.Sprintf("%s is in %s", canary, where))
			}
		}
	}

	return append(append(out, h.placed()...), h.changed()...)
}

// written is all that anybody in the tenant's namespace can read.
func (h *hostile) written() string {
	var out strings.Builder

	for _, list := range []client.ObjectList{
		&v1alpha1.HypervisorMachineTemplateList{}, &v1alpha1.RunnerPoolList{}, &v1alpha1.MachineClaimList{},
		&v1alpha1.RunnerJobList{}, &v1alpha1.RunnerLogList{},
	} {
		if err := h.tenant.List(h.t.Context(), list, client.InNamespace(h.Namespace)); err != nil {
			return err.Error()
		}

		text, _ := json.Marshal(list)
		out.Write(text)
	}

	return out.String() + fmt.Sprint(h.Events())
}

// placed says which of the tenant's machines it must not have.
func (h *hostile) placed() []string {
	var (
		claims v1alpha1.MachineClaimList
		out    []string
	)

	if err := h.Client.List(context.Background(), &claims, client.InNamespace(h.Namespace)); err != nil {
		return []string{err.Error()}
	}

	machines := 0

	for i := range claims.Items {
		claim := &claims.Items[i]
		if claim.Status.VMRef == nil || strings.HasPrefix(claim.Name, forgedPrefix) {
			continue // what hypervisors have counts, not what the tenant wrote
		}

		machines++

		var template v1alpha1.HypervisorMachineTemplate
		if err := h.Client.Get(h.t.Context(), client.ObjectKey{Namespace: h.Namespace, Name: claim.Spec.TemplateRef.Name}, &template); err != nil {
			continue // it was deleted
		}

		source, network := template.Spec.Template.Proxmox, template.Spec.Network
		if claim.Status.VMRef.HypervisorCluster != h.Cluster || source.TemplateName != pve.DefaultTemplate ||
			!slices.Contains([]string{"", "local-lvm"}, source.Storage) ||
			(network != nil && (!slices.Contains([]string{"", "vmbr0"}, network.Bridge) || (network.VLAN != nil && *network.VLAN != 100))) {
			out = append(out, fmt.Sprintf("%s has a machine of %+v %+v", claim.Name, source, network))
		}
	}

	if machines > quotaOfTenant {
		out = append(out, fmt.Sprintf("%d machines", machines))
	}

	return out
}

// changed says what is another's and not as it was.
func (h *hostile) changed() []string {
	var out []string

	for _, was := range h.theirs {
		now, ok := was.DeepCopyObject().(client.Object)
		if !ok {
			panic("no object")
		}

		if err := h.Client.Get(h.t.Context(), client.ObjectKeyFromObject(was), now); err != nil {
			out = append(out, err.Error())

			continue
		}

		if now.GetUID() != was.GetUID() || now.GetGeneration() != was.GetGeneration() || now.GetDeletionTimestamp() != nil ||
			!cmp.Equal(now.GetLabels(), was.GetLabels()) {
			out = append(out, was.GetName()+" of the neighbour was changed")
		}
	}

	runners := 0

	for _, runner := range h.GitHub.State().Runners {
		if strings.HasPrefix(runner.Name, "neighbour") {
			runners++
		}
	}

	if runners != 1 {
		out = append(out, fmt.Sprintf("the neighbour has %d runners", runners))
	}

	return out
}

// Whatever objects of whatever kinds a tenant makes, that has every right in its namespace: no
// server is called that nobody allowed, no Secret goes where its owner did not say, no machine
// is made of what the namespace may not have, and what others have stays as it is.
func TestPropertyTenantsReachNothingElse(t *testing.T) {
	t.Parallel()

	h := newHostile(t)

	property.Check(t, "a tenant reaches nothing else", lives(2, 1), prop.ForAll(h.attack, gen.Int64()))
}
