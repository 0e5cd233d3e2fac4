// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package secrets_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bridgev1 "github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/capture"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

const (
	// objectsOfTenant is how many objects a tenant makes in one run.
	objectsOfTenant = 48
	quotaOfTenant   = 3
	// forgedPrefix begins the names of claims whose status the tenant writes.
	forgedPrefix = "forged"
)

// hostile is an operator with all its areas, and a namespace that is a tenant's, beside the
// operator's own and a neighbour's.
type hostile struct {
	*fleet.Fleet

	t      *testing.T
	tenant client.Client
	// team is the tenant's namespace.
	team, neighbour string
	// platform is the way to the CI platform that is listed, and sees what is sent there.
	platform *httptest.Server
	sent     capture.Buffer
	logged   capture.Buffer
	// ears are servers that nobody allowed.
	ears []*ear
	// own are servers of the tenant's that may be called with what is the tenant's.
	own *ownServers
	// closed is a hypervisor that is open to the neighbour alone.
	closed *fleet.Site
	asked  ledger
	dice   *rand.Rand
	serial int
	made   []client.Object
	// handed is the Secret with the kubeconfig of the tenant's last hosted cluster.
	handed string
	theirs []client.Object
	// secrets are the neighbour's, by name.
	secrets []string
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
		theirsNamed(h.neighbour, private, key), theirsNamed(h.Namespace, private, key), theirsNamed("kube-system", private, key),
		theirsNamed("", "github", key), theirsNamed(h.Namespace, "proxmox", "tokenSecret"), theirsNamed(h.Namespace, "github", key))
}

func theirsNamed(namespace, name, key string) v1alpha1.SecretValueSource {
	return v1alpha1.SecretValueSource{SecretKeyRef: v1alpha1.SecretKeySelector{Namespace: namespace, Name: name, Key: key}}
}

func (h *hostile) name(kind string) metav1.ObjectMeta {
	h.serial++

	return metav1.ObjectMeta{Namespace: h.team, Name: fmt.Sprintf("%s-%d", kind, h.serial), Labels: pick(h, nil, map[string]string{
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
		{Type: v1alpha1.WorkloadGitLabCI, Config: &v1alpha1.WorkloadConfig{GitLab: &v1alpha1.GitLabCIConfig{
			URL: h.server(), ProjectID: "acme/shop", Tags: []string{"linux"},
		}}},
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
func (h *hostile) object() client.Object {
	if h.dice.IntN(2) == 0 {
		return h.other()
	}

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
func (h *hostile) corners() []client.Object {
	shared := theirsNamed(h.neighbour, "shared", "pat")

	var out []client.Object

	for _, change := range []func(*v1alpha1.HypervisorMachineTemplateSpec, *v1alpha1.GitHubBootstrap){
		func(*v1alpha1.HypervisorMachineTemplateSpec, *v1alpha1.GitHubBootstrap) {},
		func(_ *v1alpha1.HypervisorMachineTemplateSpec, g *v1alpha1.GitHubBootstrap) { g.APIURL = h.ears[0].url },
		func(_ *v1alpha1.HypervisorMachineTemplateSpec, g *v1alpha1.GitHubBootstrap) {
			g.Credentials = new(theirsNamed(h.neighbour, "closed", "pat"))
		},
		func(_ *v1alpha1.HypervisorMachineTemplateSpec, g *v1alpha1.GitHubBootstrap) {
			g.Credentials = new(theirsNamed(h.neighbour, private, "pat"))
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

	return append(append(out, forged), h.otherCorners()...)
}

// looked says whether the operator has had a look at an object.
func looked(object client.Object) bool {
	conditioned, ok := object.(interface{ StatusConditions() *[]metav1.Condition })
	if !ok {
		return true // it looks at those that others name
	}

	conditions := *conditioned.StatusConditions()

	return len(conditions) > 0 && conditions[0].Reason != "NotLookedAt"
}

// attack makes objects, and waits until the operator has looked at all that were taken. It
// gives what became of it that must not.
func (h *hostile) attack(seed int64) string {
	h.dice, h.made = rand.New(rand.NewPCG(uint64(seed), 1)), nil
	h.asked.forget()

	// Nobody gets at what is not the tenant's by asking the API server.
	for _, object := range h.theirs {
		if err := h.tenant.Delete(h.t.Context(), object); !apierrors.IsForbidden(err) {
			return fmt.Sprintf("the tenant deletes %s: %v", object.GetName(), err)
		}
	}

	heard := &v1alpha1.RunnerJobBatch{
		ObjectMeta: h.name("batch"), Spec: v1alpha1.RunnerJobBatchSpec{Jobs: []v1alpha1.RunnerJobSpec{h.job("neighbour").Spec}},
	}

	if err := h.tenant.Create(h.t.Context(), heard); err != nil {
		return err.Error()
	}

	corners := h.corners()
	for i := range objectsOfTenant + len(corners) {
		var object client.Object
		if i < len(corners) {
			object = corners[i]
		} else {
			object = h.object()
		}

		if err := h.try(object); err != nil {
			return err.Error()
		}
	}

	h.Eventually("the operator has looked at everything", func() (bool, string) {
		for _, object := range h.made {
			err := h.Client.Get(h.t.Context(), client.ObjectKeyFromObject(object), object)
			if err == nil && !looked(object) {
				return false, fmt.Sprintf("%T %s", object, object.GetName())
			}
		}

		return true, ""
	})
	h.await()

	wrong := h.reached()

	for _, object := range h.made {
		if err := client.IgnoreNotFound(h.tenant.Delete(h.t.Context(), object)); err != nil {
			return err.Error()
		}
	}

	return strings.Join(append(wrong, h.reached()...), "; ")
}

// try has the tenant make an object, and write its status where it would have it believed.
func (h *hostile) try(object client.Object) error {
	err := h.tenant.Create(h.t.Context(), object)
	if err == nil {
		h.made = append(h.made, object)
		err = h.lie(object)
	}

	if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
		return nil
	}

	return err
}

// reached says what the tenant reached that is not its own.
func (h *hostile) reached() []string {
	var out []string

	for _, e := range h.ears {
		if heard := e.heard(); heard != "" {
			out = append(out, "a server that nobody allowed was told "+heard)
		}
	}

	for _, vm := range h.closed.PVE.Snapshot().VMs {
		if !vm.Foreign {
			out = append(out, fmt.Sprintf("VM %d is on the hypervisor of others", vm.VMID))
		}
	}

	told := h.own.told()
	told["the platform"], told["the log"], told["objects"] = h.sent.String(), h.logged.String(), h.written()

	for where, text := range told {
		for name, canary := range h.canaries() {
			// The platform is what its token is for.
			if strings.Contains(text, canary) && (where != "the platform" || canary != githubtest.PAT) {
				out = append(out, fmt.Sprintf("%s is in %s", name, where))
			}
		}
	}

	return slices.Concat(out, h.placed(), h.changed(), h.read(), h.wrote())
}

// written is all that anybody in the tenant's namespace can read and did not write: what is in
// its Secrets is the operator's kubeconfigs and its own.
func (h *hostile) written() string {
	var out strings.Builder

	for _, list := range []client.ObjectList{
		&v1alpha1.HypervisorMachineTemplateList{}, &v1alpha1.RunnerPoolList{}, &v1alpha1.MachineClaimList{},
		&v1alpha1.RunnerJobList{}, &v1alpha1.RunnerLogList{}, &infrav1.HostFleetList{}, &infrav1.LinuxMachineList{},
		&infrav1.ScalewayAppleSiliconMachineList{}, &infrav1.KubevirtNodePoolList{}, &infrav1.KubevirtMachineList{},
		&infrav1.KubevirtMachineTemplateList{}, &bridgev1.DPFHCPBridgeList{}, &corev1.SecretList{}, &corev1.ConfigMapList{},
	} {
		if err := h.tenant.List(h.t.Context(), list, client.InNamespace(h.team)); err != nil {
			return err.Error()
		}

		text, _ := json.Marshal(list)
		out.Write(text)
	}

	var events eventsv1.EventList
	if err := h.Client.List(h.t.Context(), &events, client.InNamespace(h.team)); err != nil {
		return err.Error()
	}

	text, _ := json.Marshal(events)
	out.Write(text)

	return out.String()
}

// placed says which of the tenant's machines it must not have.
func (h *hostile) placed() []string {
	var (
		claims v1alpha1.MachineClaimList
		out    []string
	)

	if err := h.Client.List(context.Background(), &claims, client.InNamespace(h.team)); err != nil {
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
		if err := h.Client.Get(h.t.Context(), client.ObjectKey{Namespace: h.team, Name: claim.Spec.TemplateRef.Name}, &template); err != nil {
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

// Whatever objects of whatever kinds a tenant makes, that has every right in its namespace: no
// server is told anything that is not the tenant's or for that server, no Secret of another
// namespace is read that does not allow it, nothing is written in another namespace, no machine is
// made of what the namespace may not have, and what others have stays as it is.
func TestPropertyTenantsReachNothingElse(t *testing.T) {
	t.Parallel()

	h := newHostile(t)

	property.Check(t, "a tenant reaches nothing else", property.Options{Brief: 2}, prop.ForAllNoShrink(h.attack, gen.Int64()))
	h.wentFar()
}
