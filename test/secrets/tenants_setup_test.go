// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package secrets_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	virtv1 "kubevirt.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bridgev1 "github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

func newTenantFixture(t *testing.T) *tenantFixture {
	t.Helper()

	h := &tenantFixture{
		Fleet: fleet.New(t, env, fleet.Options{}), t: t, team: env.Namespace(t), neighbour: env.Namespace(t),
		unlisted: []*recordingServer{startListener(t), startListener(t)}, own: newTenantServers(t),
	}
	h.ExtraNamespaces, h.Log, h.WrapTransport, h.Networking = []string{h.team, h.neighbour}, &h.operatorLog, h.calls.wrapTransport, true

	target, err := url.Parse(h.GitHub.URL)
	if err != nil {
		t.Fatal(err)
	}

	forward := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	h.platform = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(&h.platformRequests, r.URL, r.Header)

		// The tenant may also name this server as a GitLab, Gitea or Buildkite, whose paths GitHub does not have.
		isGitHub := strings.HasPrefix(r.URL.Path, "/api/v3/") ||
			!strings.HasPrefix(r.URL.Path, "/api/") && !strings.HasPrefix(r.URL.Path, "/stacks/")
		if !isGitHub {
			http.NotFound(w, r)

			return
		}

		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(h.platform.Close)

	h.Runners.PlatformURLs = []string{h.platform.URL}

	cluster := h.NewCluster()
	cluster.Spec.AllowedNamespaces = []v1alpha1.NamespaceAccess{{Names: []string{h.neighbour}}, {
		Names: []string{h.team}, Templates: []string{pve.DefaultTemplate}, Storages: []string{"local-lvm"}, Networks: []string{"vmbr0"},
		VLANs: []v1alpha1.VLANRange{{Min: 100, Max: 109}}, Addresses: []string{"10.20.1.0/24"},
		Quota: &v1alpha1.NamespaceQuota{Machines: new(int32(machineQuota))},
	}}
	h.CreateCluster(cluster)
	h.closed = h.NewSite("closed", fleet.Model(), func(c *v1alpha1.HypervisorCluster) {
		c.Spec.AllowedNamespaces = []v1alpha1.NamespaceAccess{{Names: []string{h.neighbour}}}
		c.Spec.DNS = &v1alpha1.HypervisorDNS{
			Domain: "closed.example.com", RegisterVMs: true,
			DNSProvider: &v1alpha1.DNSProvider{
				Type: "rfc2136", Server: h.unlisted[0].address(), Zones: []string{"closed.example.com"},
				Credentials: map[string]v1alpha1.SecretValueSource{
					"keyName": newSecretRef(h.Namespace, private, "key"), "key": newSecretRef(h.Namespace, private, "key"),
				},
			},
		}
	})

	h.random = rand.New(rand.NewPCG(1, 1))
	h.createNeighbourObjects()
	h.createOtherObjects()
	h.grantTenant()
	h.startOtherAreas()
	h.Start()

	h.Eventually("the neighbour has its machine", func() (bool, string) {
		var claim v1alpha1.MachineClaim

		err := h.Client.Get(t.Context(), client.ObjectKey{Namespace: h.neighbour, Name: "neighbour"}, &claim)

		return err == nil && claim.Status.BootstrapInfo != nil && claim.Status.BootstrapInfo.RunnerID != "", step.NotReadyMessage(&claim)
	})
	h.Eventually("the neighbour's node pool has its VM", func() (bool, string) {
		var vms virtv1.VirtualMachineList

		err := h.Client.List(t.Context(), &vms, client.InNamespace(h.neighbour))

		return err == nil && len(vms.Items) > 0, fmt.Sprint(err)
	})

	h.neighbourSecrets = h.listSecrets(h.neighbour)

	return h
}

// createNeighbourObjects creates the objects of the neighbour and of the platform team.
func (h *tenantFixture) createNeighbourObjects() {
	host := strings.TrimPrefix(h.platform.URL, "http://")

	for name, secret := range map[string]struct{ namespaces, servers, value string }{
		"closed":    {"", host, closedCanary},
		"elsewhere": {h.team, "git.example.com", elsewhereCanary},
		"shared":    {h.team, host, githubtest.PAT},
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
	job := h.newJob("neighbour")

	for _, object := range []client.Object{template, claim, pool, job} {
		object.SetNamespace(h.neighbour)
		h.Create(object)
		h.neighbourObjects = append(h.neighbourObjects, object)
	}
}

// grantTenant gives the tenant all permissions for the operator's kinds in its namespace, including the
// statuses.
func (h *tenantFixture) grantTenant() {
	meta := metav1.ObjectMeta{Namespace: h.team, Name: "team"}
	all := []string{"*"}
	h.Create(&rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{
			v1alpha1.GroupVersion.Group, infrav1.GroupVersion.Group, bridgev1.GroupVersion.Group, hypershift.DPUClusterKind().Group,
		}, Resources: all, Verbs: all},
		{APIGroups: []string{""}, Resources: []string{"secrets", "configmaps"}, Verbs: all},
	}})
	h.Create(&rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: h.team}},
	})

	var err error
	if h.tenant, err = client.New(h.Env.User(h.t, "mallory", h.team), client.Options{Scheme: h.Client.Scheme()}); err != nil {
		h.t.Fatal(err)
	}

	// The API server applies the policy of the bridge's manifests with a delay.
	h.Eventually("the policy for bridges is in force", func() (bool, string) {
		err := h.tenant.Create(h.t.Context(), h.newBridge(h.neighbour, theirName), client.DryRunAll)

		return apierrors.IsForbidden(err), fmt.Sprint(err)
	})
}
