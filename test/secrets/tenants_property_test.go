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
	// objectsPerRun is the number of random objects that the tenant creates in one run.
	objectsPerRun = 48
	machineQuota  = 3
	// forgedPrefix is the prefix of claims whose status the tenant writes.
	forgedPrefix = "forged"
)

// tenantFixture is an operator with all areas, the operator's namespace, a tenant's namespace and a
// neighbour's namespace.
type tenantFixture struct {
	*fleet.Fleet

	t      *testing.T
	tenant client.Client
	// team is the tenant's namespace.
	team, neighbour string
	// platform is a proxy to the CI platform, which the configuration allows. sent records the requests.
	platform         *httptest.Server
	platformRequests capture.Buffer
	operatorLog      capture.Buffer
	// unlisted are servers that the configuration does not allow.
	unlisted []*recordingServer
	// own are the tenant's servers, which may get the tenant's credentials.
	own *tenantServers
	// closed is a hypervisor that only the neighbour may use.
	closed  *fleet.Site
	calls   callRecorder
	random  *rand.Rand
	serial  int
	created []client.Object
	// kubeconfigSecret is the Secret with the kubeconfig of the tenant's hosted cluster.
	kubeconfigSecret string
	neighbourObjects []client.Object
	// neighbourSecrets are the names of the neighbour's Secrets.
	neighbourSecrets []string
}

func pick[T any](h *tenantFixture, from ...T) T { return from[h.random.IntN(len(from))] }

// pickServerURL returns the URL of the platform or, more often, one of many notations for a server that is not
// allowed.
func (h *tenantFixture) pickServerURL() string {
	bad := strings.TrimPrefix(pick(h, h.unlisted...).url, "http://")
	good := strings.TrimPrefix(h.platform.URL, "http://")
	_, port, _ := strings.Cut(bad, ":")

	return pick(h, h.platform.URL, "http://"+bad, "https://"+bad, "http://localhost:"+port, "http://"+good+"@"+bad,
		"http://"+bad+"/"+good, "http://[::ffff:127.0.0.1]:"+port, "http://2130706433:"+port, "http://"+bad+"#"+good)
}

// pickSecretRef returns a reference to a Secret that the tenant may or may not use.
func (h *tenantFixture) pickSecretRef(key string) v1alpha1.SecretValueSource {
	return pick(h,
		newSecretRef(h.neighbour, "shared", key), newSecretRef(h.neighbour, "closed", key), newSecretRef(h.neighbour, "elsewhere", key),
		newSecretRef(h.neighbour, private, key), newSecretRef(h.Namespace, private, key), newSecretRef("kube-system", private, key),
		newSecretRef("", "github", key), newSecretRef(h.Namespace, "proxmox", "tokenSecret"), newSecretRef(h.Namespace, "github", key))
}

func newSecretRef(namespace, name, key string) v1alpha1.SecretValueSource {
	return v1alpha1.SecretValueSource{SecretKeyRef: v1alpha1.SecretKeySelector{Namespace: namespace, Name: name, Key: key}}
}

func (h *tenantFixture) newMeta(kind string) metav1.ObjectMeta {
	h.serial++

	return metav1.ObjectMeta{Namespace: h.team, Name: fmt.Sprintf("%s-%d", kind, h.serial), Labels: pick(h, nil, map[string]string{
		v1alpha1.LabelRunnerPool: "neighbour", "team": h.neighbour,
	})}
}

func (h *tenantFixture) newRandomTemplate() *v1alpha1.HypervisorMachineTemplate {
	out := h.NewTemplate()
	out.ObjectMeta = h.newMeta("template")
	spec := &out.Spec
	spec.HypervisorClusterRef.Name = pick(h, h.Cluster, h.Cluster, h.closed.Cluster.Name, "no-such-cluster")
	spec.Template.Proxmox.TemplateName = pick(h, pve.DefaultTemplate, pve.DefaultTemplate, "secret-template")
	spec.Template.Proxmox.Storage = pick(h, "", "local-lvm", "local")
	spec.Network = pick(h, nil, &v1alpha1.MachineNetwork{
		Mode: v1alpha1.NetworkModeDHCP, Bridge: pick(h, "", "vmbr0", "vmbr1"), VLAN: pick(h, nil, new(int32(100)), new(int32(7))),
	})
	spec.CloudInit = pick(h, nil, &v1alpha1.CloudInit{UserData: "#cloud-config\nruncmd: [\"true {{.Claim.Name}}\"]\n"})
	spec.Bootstrap.Method = pick(h, v1alpha1.BootstrapRunnerToken, v1alpha1.BootstrapCallback)

	token := h.pickSecretRef("pat")
	config := spec.Bootstrap.Config

	switch h.random.IntN(6) {
	case 5:
		config.GitHub, config.Gitea = nil, &v1alpha1.GiteaBootstrap{Credentials: token}
	case 4:
		config.GitHub, config.Forgejo = nil, &v1alpha1.GiteaBootstrap{Credentials: token}
	case 0:
		config.GitHub = nil
		config.GitLab = &v1alpha1.GitLabBootstrap{Credentials: token}
	case 1:
		config.GitHub = nil
		config.Buildkite = &v1alpha1.BuildkiteBootstrap{Credentials: token, Endpoint: h.pickServerURL()}
	default:
		config.GitHub.APIURL, config.GitHub.Credentials = h.pickServerURL(), &token
		config.GitHub.Registration = pick(h, "", v1alpha1.RegistrationJIT, v1alpha1.RegistrationToken)
		config.GitHub.RegistrationURLs = pick(h, nil, &v1alpha1.GitHubURLs{Repository: h.pickServerURL() + "/{owner}/{repo}"})

		if h.random.IntN(3) == 0 {
			config.GitHub.Credentials = nil
			config.GitHub.App = &v1alpha1.GitHubApp{AppID: token, InstallationID: token, PrivateKey: token}
		}
	}

	return out
}

func (h *tenantFixture) newRandomWorkload() v1alpha1.Workload {
	all := []v1alpha1.Workload{
		{Type: v1alpha1.WorkloadGitHubActions, Config: &v1alpha1.WorkloadConfig{GitHub: &v1alpha1.GitHubActionsConfig{
			Labels: []string{"linux"}, ScaleSet: pick(h, "", "set"),
		}}},
		{Type: v1alpha1.WorkloadGitLabCI, Config: &v1alpha1.WorkloadConfig{GitLab: &v1alpha1.GitLabCIConfig{
			URL: h.pickServerURL(), ProjectID: "acme/shop", Tags: []string{"linux"},
		}}},
		{Type: v1alpha1.WorkloadBuildkite, Config: &v1alpha1.WorkloadConfig{Buildkite: &v1alpha1.BuildkiteConfig{Organization: "acme"}}},
		{Type: v1alpha1.WorkloadGiteaActions, Config: &v1alpha1.WorkloadConfig{Gitea: &v1alpha1.GiteaConfig{
			URL: h.pickServerURL(), Repository: "acme/shop", Labels: []string{"linux"},
		}}},
		{Type: v1alpha1.WorkloadForgejoActions, Config: &v1alpha1.WorkloadConfig{Forgejo: &v1alpha1.GiteaConfig{
			URL: h.pickServerURL(), Repository: "acme/shop", Labels: []string{"linux"},
		}}},
		{Type: v1alpha1.WorkloadGeneric, Config: &v1alpha1.WorkloadConfig{Generic: &v1alpha1.GenericConfig{
			Source: "nightly", Labels: []string{"linux"}, Command: []string{"/usr/bin/true"},
		}}},
	}

	out := pick(h, all...)
	if h.random.IntN(2) == 0 {
		out.Webhook = &v1alpha1.Webhook{Secret: h.pickSecretRef("secret")}
	}

	return out
}

// pickTemplateName returns the name of a template of the tenant, or of the neighbour.
func (h *tenantFixture) pickTemplateName() string {
	names := []string{fleet.Template}

	for _, object := range h.created {
		if strings.HasPrefix(object.GetName(), "template-") {
			names = append(names, object.GetName())
		}
	}

	return pick(h, names...)
}

func (h *tenantFixture) newJob(name string) *v1alpha1.RunnerJob {
	return &v1alpha1.RunnerJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: h.Namespace, Name: name},
		Spec: v1alpha1.RunnerJobSpec{
			Platform: v1alpha1.WorkloadGeneric, ID: name, Name: name, Labels: []string{"linux"}, State: v1alpha1.JobQueued, Queue: "nightly",
		},
	}
}

// newObject returns a random object of any kind that a tenant may create.
func (h *tenantFixture) newObject() client.Object {
	if h.random.IntN(2) == 0 {
		return h.newOtherObject()
	}

	switch h.random.IntN(8) {
	case 0, 1, 2:
		return h.newRandomTemplate()
	case 3, 4:
		pool := h.NewPool(int32(h.random.IntN(3)))
		pool.ObjectMeta = h.newMeta("pool")
		pool.Spec.TemplateRef.Name, pool.Spec.Workload = h.pickTemplateName(), h.newRandomWorkload()

		return pool
	case 5:
		job := h.newJob("")
		job.ObjectMeta = h.newMeta("job")
		job.Spec.ID = pick(h, "neighbour", job.Name)
		job.Spec.Platform = pick(h, v1alpha1.WorkloadGeneric, v1alpha1.WorkloadGitHubActions)
		job.Spec.RunnerName = pick(h, "", "neighbour")

		return job
	default:
		claim := h.NewClaim("")
		claim.ObjectMeta = h.newMeta("claim")
		claim.Spec.TemplateRef.Name, claim.Spec.WorkloadConfig = h.pickTemplateName(), h.newRandomWorkload()

		return claim
	}
}

// listEdgeCases returns claims, each with its own template. Each template differs in one value from what the
// tenant may use.
func (h *tenantFixture) listEdgeCases() []client.Object {
	shared := newSecretRef(h.neighbour, "shared", "pat")

	var out []client.Object

	for _, change := range []func(*v1alpha1.HypervisorMachineTemplateSpec, *v1alpha1.GitHubBootstrap){
		func(*v1alpha1.HypervisorMachineTemplateSpec, *v1alpha1.GitHubBootstrap) {},
		func(_ *v1alpha1.HypervisorMachineTemplateSpec, g *v1alpha1.GitHubBootstrap) {
			g.APIURL = h.unlisted[0].url
		},
		func(_ *v1alpha1.HypervisorMachineTemplateSpec, g *v1alpha1.GitHubBootstrap) {
			g.Credentials = new(newSecretRef(h.neighbour, "closed", "pat"))
		},
		func(_ *v1alpha1.HypervisorMachineTemplateSpec, g *v1alpha1.GitHubBootstrap) {
			g.Credentials = new(newSecretRef(h.neighbour, private, "pat"))
		},
		func(_ *v1alpha1.HypervisorMachineTemplateSpec, g *v1alpha1.GitHubBootstrap) {
			g.Credentials = new(newSecretRef(h.neighbour, "elsewhere", "pat"))
		},
		func(s *v1alpha1.HypervisorMachineTemplateSpec, _ *v1alpha1.GitHubBootstrap) {
			s.HypervisorClusterRef.Name = h.closed.Cluster.Name
		},
		func(s *v1alpha1.HypervisorMachineTemplateSpec, _ *v1alpha1.GitHubBootstrap) {
			s.Network = &v1alpha1.MachineNetwork{Mode: v1alpha1.NetworkModeDHCP, Bridge: "vmbr0", VLAN: new(int32(7))}
		},
	} {
		template, claim := h.NewTemplate(), h.NewClaim("")
		template.ObjectMeta, claim.ObjectMeta = h.newMeta("template"), h.newMeta("claim")
		claim.Spec.TemplateRef.Name = template.Name
		template.Spec.Bootstrap.Config.GitHub.APIURL, template.Spec.Bootstrap.Config.GitHub.Credentials = h.platform.URL, &shared
		change(&template.Spec, template.Spec.Bootstrap.Config.GitHub)
		out = append(out, template, claim)
	}

	// The claim uses a template that the tenant may use.
	forged := h.NewClaim("")
	forged.ObjectMeta = h.newMeta(forgedPrefix)
	forged.Spec.TemplateRef.Name = out[0].GetName()

	return append(append(out, forged), h.listOtherEdgeCases()...)
}

// isReconciled returns whether the operator has reconciled an object.
func isReconciled(object client.Object) bool {
	conditioned, ok := object.(interface{ StatusConditions() *[]metav1.Condition })
	if !ok {
		return true // it has no conditions
	}

	conditions := *conditioned.StatusConditions()

	return len(conditions) > 0 && conditions[0].Reason != "NotReconciled"
}

// attack creates objects, waits until the operator has reconciled all accepted ones, and returns the
// violations.
func (h *tenantFixture) attack(seed int64) string {
	h.random, h.created = rand.New(rand.NewPCG(uint64(seed), 1)), nil
	h.calls.reset()

	// The API server rejects the tenant's own access to objects of others.
	for _, object := range h.neighbourObjects {
		if err := h.tenant.Delete(h.t.Context(), object); !apierrors.IsForbidden(err) {
			return fmt.Sprintf("the tenant deleted %s: %v", object.GetName(), err)
		}
	}

	batch := &v1alpha1.RunnerJobBatch{
		ObjectMeta: h.newMeta("batch"), Spec: v1alpha1.RunnerJobBatchSpec{Jobs: []v1alpha1.RunnerJobSpec{h.newJob("neighbour").Spec}},
	}

	if err := h.tenant.Create(h.t.Context(), batch); err != nil {
		return err.Error()
	}

	corners := h.listEdgeCases()
	for i := range objectsPerRun + len(corners) {
		var object client.Object
		if i < len(corners) {
			object = corners[i]
		} else {
			object = h.newObject()
		}

		if err := h.createAsTenant(object); err != nil {
			return err.Error()
		}
	}

	h.Eventually("the operator has reconciled all objects", func() (bool, string) {
		for _, object := range h.created {
			err := h.Client.Get(h.t.Context(), client.ObjectKeyFromObject(object), object)
			if err == nil && !isReconciled(object) {
				return false, fmt.Sprintf("%T %s", object, object.GetName())
			}
		}

		return true, ""
	})
	h.waitForOwnObjects()

	wrong := h.listViolations()

	for _, object := range h.created {
		if err := client.IgnoreNotFound(h.tenant.Delete(h.t.Context(), object)); err != nil {
			return err.Error()
		}
	}

	return strings.Join(append(wrong, h.listViolations()...), "; ")
}

// createAsTenant creates an object as the tenant, and forges its status.
func (h *tenantFixture) createAsTenant(object client.Object) error {
	err := h.tenant.Create(h.t.Context(), object)
	if err == nil {
		h.created = append(h.created, object)
		err = h.forgeStatus(object)
	}

	if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
		return nil
	}

	return err
}

// listViolations returns everything that the tenant reached and may not reach.
func (h *tenantFixture) listViolations() []string {
	var out []string

	for _, e := range h.unlisted {
		if text := e.text(); text != "" {
			out = append(out, "a server that is not allowed received "+text)
		}
	}

	for _, vm := range h.closed.PVE.Snapshot().VMs {
		if !vm.Foreign {
			out = append(out, fmt.Sprintf("VM %d is on the hypervisor of others", vm.VMID))
		}
	}

	received := h.own.listReceived()
	received["the platform"], received["the log"], received["objects"] = h.platformRequests.String(), h.operatorLog.String(), h.readTenantObjects()

	for where, text := range received {
		for name, canary := range h.listCanaries() {
			// The platform may get its own token.
			if strings.Contains(text, canary) && (where != "the platform" || canary != githubtest.PAT) {
				out = append(out, fmt.Sprintf("%s is in %s", name, where))
			}
		}
	}

	return slices.Concat(out, h.checkMachines(), h.checkChanges(), h.checkReads(), h.checkWrites())
}

// readTenantObjects returns the content of all objects and events in the tenant's namespace.
func (h *tenantFixture) readTenantObjects() string {
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

// checkMachines returns the tenant's machines that it may not have.
func (h *tenantFixture) checkMachines() []string {
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
			continue // the tenant wrote this status
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
			out = append(out, fmt.Sprintf("%s has a machine with %+v %+v", claim.Name, source, network))
		}
	}

	if machines > machineQuota {
		out = append(out, fmt.Sprintf("%d machines", machines))
	}

	return out
}

// A tenant with all permissions in its namespace creates objects of all kinds. No server receives anything
// that is not the tenant's or meant for this server. The operator reads no Secret of another namespace that
// does not allow it, and writes nothing in other namespaces. No machine uses anything that the namespace may
// not use, and the objects of others stay unchanged.
func TestPropertyTenantsReachNothingElse(t *testing.T) {
	t.Parallel()

	h := newTenantFixture(t)

	property.Check(t, "a tenant reaches nothing else", property.Options{Brief: 2}, prop.ForAllNoShrink(h.attack, gen.Int64()))
	h.requireActivity()
}
