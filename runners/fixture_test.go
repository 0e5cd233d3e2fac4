// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

const (
	endpoint = "https://pve.example:8006/api2/json"
	gib      = 1 << 30
)

var (
	env *kube.Env
	// key is the key from which the codes of machines are derived.
	key = []byte(strings.Repeat("k", 32))
)

func TestMain(m *testing.M) {
	kube.Main(m, &env, kube.ForArea("runners"))
}

// getObject gets an object from the API server.
func getObject[T client.Object](t testing.TB, namespace, name string, into T) T {
	t.Helper()

	if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, into); err != nil {
		t.Fatalf("get %s: %v", name, err)
	}

	return into
}

// createClaim creates a claim and its status.
func createClaim(t testing.TB, claim *v1alpha1.MachineClaim) *v1alpha1.MachineClaim {
	t.Helper()

	status := claim.Status
	env.Create(t, claim)

	claim.Status = status
	if err := env.Client.Status().Update(t.Context(), claim); err != nil {
		t.Fatal(err)
	}

	return claim
}

func deleteObject(t testing.TB, obj client.Object) {
	t.Helper()

	if err := env.Client.Delete(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
}

func newClaim(namespace, name string) *v1alpha1.MachineClaim {
	return &v1alpha1.MachineClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.MachineClaimSpec{
			TemplateRef: v1alpha1.LocalObjectReference{Name: "linux"},
			WorkloadConfig: v1alpha1.Workload{
				Type:   v1alpha1.WorkloadGitHubActions,
				Config: &v1alpha1.WorkloadConfig{GitHub: &v1alpha1.GitHubActionsConfig{Labels: []string{"linux"}}},
			},
		},
	}
}

func newTemplate(namespace, name, cluster string) *v1alpha1.HypervisorMachineTemplate {
	return &v1alpha1.HypervisorMachineTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.HypervisorMachineTemplateSpec{
			HypervisorClusterRef: v1alpha1.LocalObjectReference{Name: cluster},
			Template:             v1alpha1.TemplateSource{Proxmox: &v1alpha1.ProxmoxTemplate{TemplateName: "linux"}},
			Resources:            v1alpha1.MachineResources{CPU: 1, Memory: resource.MustParse("1Gi")},
		},
	}
}

// newCluster returns a cluster with its credentials in the Secret "secrets".
func newCluster(name string) *v1alpha1.HypervisorCluster {
	return &v1alpha1.HypervisorCluster{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.HypervisorClusterSpec{
			Provider: v1alpha1.ProviderProxmox, Endpoint: endpoint,
			Credentials: v1alpha1.HypervisorCredentials{TokenID: newSecretSource("id"), TokenSecret: newSecretSource("secret")},
		},
	}
}

func newSecretSource(name string) *v1alpha1.SecretValueSource {
	return &v1alpha1.SecretValueSource{SecretKeyRef: v1alpha1.SecretKeySelector{Name: "secrets", Key: name}}
}

// createSecrets creates a Secret with the credentials of a cluster and of a CI platform.
func createSecrets(t testing.TB, namespace string) {
	t.Helper()
	env.Create(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "secrets"},
		Data: map[string][]byte{
			"id": []byte("ci@pve!fleet"), "secret": []byte("s3cret"), "token": []byte("ghp_x"), "pat": []byte(githubtest.PAT),
		},
	})
}

// fakeHypervisor is a hypervisor whose responses the test sets.
type fakeHypervisor struct {
	hypervisor.Connection

	token     string
	err       error
	nodes     []hypervisor.Node
	templates []hypervisor.Template
	machines  int
	// checks counts the calls of Check, and openConnections the open connections.
	checks, openConnections int
	warnings                []string
}

func (l *fakeHypervisor) Check(context.Context) (hypervisor.Info, error) {
	l.checks++

	return hypervisor.Info{Product: "Lab", Version: "9.2", Nodes: l.nodes, Warnings: l.warnings}, l.err
}

func (l *fakeHypervisor) Capacity(context.Context) (hypervisor.Capacity, error) {
	out := hypervisor.Capacity{Nodes: l.nodes, Machines: l.machines}
	for _, node := range l.nodes {
		out.Free.CPU += node.Free.CPU
		out.Free.Memory += node.Free.Memory
		out.Free.Disk += node.Free.Disk
	}

	return out, nil
}

func (l *fakeHypervisor) Resolve(context.Context, hypervisor.TemplateRef, hypervisor.Shape) ([]hypervisor.Template, error) {
	return l.templates, l.err
}

func (l *fakeHypervisor) Close() { l.openConnections-- }

// newClusters connects to the fake hypervisor, with Secrets of the operator's namespace.
func (l *fakeHypervisor) newClusters(secrets client.Reader, operator string) *connect.Clusters {
	return &connect.Clusters{
		Secrets: &connect.Secrets{Reader: secrets, OperatorNamespace: operator},
		Factories: map[string]hypervisor.Factory{
			v1alpha1.ProviderProxmox: func(config hypervisor.Config, _ hypervisor.Options) (hypervisor.Connection, error) {
				l.openConnections++
				l.token = config.Credentials.TokenSecret

				return l, nil
			},
		},
	}
}

// fakePlatform is a CI platform of type GitHub that is never called.
type fakePlatform struct {
	github.Platform
	workload.Provider

	err          error
	opened       int
	runners      []workload.Runner
	deregistered []string
	// stuck is the ID of a runner that cannot be deregistered.
	stuck string
}

func (f *fakePlatform) Open(workload.Config) (workload.Provider, error) {
	f.opened++

	return f, nil
}

func (f *fakePlatform) Validate(context.Context) error { return f.err }

func (f *fakePlatform) ListRunners(context.Context, string) ([]workload.Runner, error) {
	return f.runners, nil
}

func (f *fakePlatform) Deregister(_ context.Context, id string) error {
	if id == f.stuck {
		return &workload.Error{Kind: workload.RunnerBusy, Message: "the runner is busy"}
	}

	f.deregistered = append(f.deregistered, id)

	return nil
}

// formatEvents returns the events so far.
func formatEvents(recorder *events.FakeRecorder) string {
	var out strings.Builder

	for {
		select {
		case event := <-recorder.Events:
			out.WriteString(event + "\n")
		default:
			return out.String()
		}
	}
}

// operatorResponse is the operator's response to a machine.
type operatorResponse struct {
	status     int
	body       string
	refusal    guest.Refusal
	retryAfter string
}

// sendRequest sends a request to a path of the operator, with the given bearer token.
func sendRequest(t *testing.T, operator *httptest.Server, path, bearer, body string) operatorResponse {
	t.Helper()

	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, operator.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}

	request.Header.Set("Authorization", bearer)

	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return operatorResponse{body: err.Error()} // the connection was closed
	}

	defer func() { _ = response.Body.Close() }()

	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}

	out := operatorResponse{status: response.StatusCode, body: string(text), retryAfter: response.Header.Get("Retry-After")}
	_ = json.Unmarshal(text, &out.refusal)

	return out
}
