// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/timing"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

var (
	env *kube.Env
	// operator is a client whose calls count as calls of the area's account.
	operator client.Client
)

func TestMain(m *testing.M) {
	kube.Main(m, &env, kube.ForArea("runners"), kube.WithSetup(func(context.Context, *rest.Config) (err error) {
		operator, err = env.ClientAs("hyperfleet-runners")

		return err
	}))
}

// newUniqueName returns a name that no other test uses, because pools of all namespaces receive a webhook.
func newUniqueName(t *testing.T) string {
	t.Helper()

	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' {
			return c
		}

		return '-'
	}, strings.ToLower(t.Name()))
}

// createPool creates a pool that receives webhooks, with a Secret that holds the secret.
func createPool(t testing.TB, namespace, name, repository, secret string, labels ...string) *v1alpha1.RunnerPool {
	t.Helper()

	env.Create(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: map[string][]byte{"secret": []byte(secret)},
	})

	out := &v1alpha1.RunnerPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.RunnerPoolSpec{
			TemplateRef: v1alpha1.LocalObjectReference{Name: "linux"},
			Workload: v1alpha1.Workload{
				Type: v1alpha1.WorkloadGitHubActions,
				Config: &v1alpha1.WorkloadConfig{
					GitHub: &v1alpha1.GitHubActionsConfig{Repository: repository, Labels: labels},
				},
				Webhook: &v1alpha1.Webhook{Secret: v1alpha1.SecretValueSource{
					SecretKeyRef: v1alpha1.SecretKeySelector{Name: name, Key: "secret"},
				}},
			},
		},
	}
	env.Create(t, out)

	return out
}

func newTestReceiver(kubeClient client.Client, clk clock.Clock, edits ...func(*demand.ReceiverConfig)) http.Handler {
	config := demand.ReceiverConfig{
		Client: kubeClient, Secrets: &connect.Secrets{Reader: kubeClient}, Clock: clk,
		Platforms: newPlatforms(),
	}
	for _, edit := range edits {
		edit(&config)
	}

	mux := http.NewServeMux()
	mux.Handle(demand.Pattern, demand.NewReceiver(config))

	return mux
}

func newWebhookBody(repository string, id int, status string, labels ...string) []byte {
	text, err := json.Marshal(map[string]any{
		"action": "queued",
		"workflow_job": map[string]any{
			"id": id, "run_id": 1, "name": "build", "status": status, "labels": labels, "runner_name": "r1",
			"conclusion": "success", "created_at": "2026-01-02T03:04:05Z", "completed_at": "2026-01-02T03:05:05Z",
			"html_url": "https://github.com/" + repository + "/actions/runs/1/job/1",
		},
		"repository": map[string]any{"full_name": repository},
	})
	if err != nil {
		panic(err)
	}

	return text
}

func newWebhookRequest(body []byte, secret string, edits ...func(*http.Request)) *http.Request {
	req := httptest.NewRequest(http.MethodPost, "/webhooks/github", bytes.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(github.HeaderEvent, "workflow_job")

	if secret != "" {
		req.Header.Set(github.HeaderSignature, "sha256="+hex.EncodeToString(github.Sign(body, []byte(secret))))
	}

	for _, edit := range edits {
		edit(req)
	}

	return req
}

func serveRequest(handler http.Handler, req *http.Request) *httptest.ResponseRecorder {
	out := httptest.NewRecorder()
	handler.ServeHTTP(out, req)

	return out
}

func listJobs(t *testing.T, namespace string) map[string]v1alpha1.RunnerJob {
	t.Helper()

	var jobs v1alpha1.RunnerJobList
	if err := env.Client.List(t.Context(), &jobs, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}

	out := map[string]v1alpha1.RunnerJob{}
	for _, job := range jobs.Items {
		out[job.Name] = job
	}

	return out
}

func TestReceiverResponses(t *testing.T) {
	// This test does not run in parallel with others: the receiver tries the secrets of only a limited number
	// of pools for a webhook of an unknown repository, and the pools of other tests are in the same API
	// server.
	const secret = "right"

	namespace, repository := env.Namespace(t), newUniqueName(t)+"/app"
	createPool(t, namespace, "linux", repository, secret, "linux")

	good := newWebhookBody(repository, 1, "queued", "self-hosted", "linux")
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	path := func(target string) func(*http.Request) { return func(r *http.Request) { r.URL.Path = target } }
	large := append(bytes.Clone(good), bytes.Repeat([]byte(" "), demand.DefaultMaxBody)...)

	tests := map[string]struct {
		req     *http.Request
		status  int
		text    string
		written string
	}{
		"a queued job":                {newWebhookRequest(good, secret), 202, "", "gh-1"},
		"by the workload type":        {newWebhookRequest(good, secret, path("/webhooks/github-actions")), 202, "", "gh-1"},
		"labels that no pool has":     {newWebhookRequest(newWebhookBody(repository, 2, "queued", "self-hosted", "s390x"), secret), 202, "", "gh-2"},
		"a job for GitHub's machines": {newWebhookRequest(newWebhookBody(repository, 3, "queued", "ubuntu-latest"), secret), 204, "", ""},
		"a ping":                      {newWebhookRequest([]byte(`{"zen":"z"}`), secret, header(github.HeaderEvent, "ping")), 204, "", ""},
		"not signed":                  {newWebhookRequest(good, ""), 401, "signature is missing", ""},
		"a wrong secret":              {newWebhookRequest(good, "wrong"), 401, "workload.webhook.secret", ""},
		"a changed body": {
			newWebhookRequest(bytes.Replace(good, []byte("linux"), []byte("linuX"), 1), "", header(github.HeaderSignature,
				"sha256="+hex.EncodeToString(github.Sign(good, []byte(secret))))), 401, "signature", "",
		},
		"an unknown repository":  {newWebhookRequest(newWebhookBody("nobody/nothing", 4, "queued", "x"), "wrong"), 401, "signature is missing", ""},
		"signed, no pool for it": {newWebhookRequest(newWebhookBody("nobody/nothing", 4, "queued", "x"), secret), 404, "serves its repository", ""},
		"unknown platform":       {newWebhookRequest(good, secret, path("/webhooks/jenkins")), 404, "/webhooks/github", ""},
		"too large":              {newWebhookRequest(large, secret), 413, "maxBodyBytes", ""},
		"too large without Content-Length": {
			newWebhookRequest(large, secret, func(r *http.Request) { r.ContentLength = -1 }), 413, "maxBodyBytes", "",
		},
		"a form": {
			newWebhookRequest(good, secret, header("Content-Type", "application/x-www-form-urlencoded")), 415, "application/json", "",
		},
		"not JSON":         {newWebhookRequest([]byte("payload=x"), secret), 400, "not a workflow_job event", ""},
		"JSON, but no job": {newWebhookRequest([]byte(`{"repository":{"full_name":"`+repository+`"}}`), secret), 400, "workflow_job.id", ""},
		"no event":         {newWebhookRequest(good, secret, func(r *http.Request) { r.Header.Del(github.HeaderEvent) }), 400, "X-Github-Event", ""},
		"another method":   {newWebhookRequest(good, secret, func(r *http.Request) { r.Method = http.MethodGet }), 405, "POST", ""},
	}

	registry := prometheus.NewRegistry()

	metrics, err := demand.NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}

	receiver := newTestReceiver(env.Client, nil, func(c *demand.ReceiverConfig) { c.Metrics = metrics })

	for name, test := range tests {
		got := serveRequest(receiver, test.req)

		t.Run(name, func(t *testing.T) {
			if got.Code != test.status || !strings.Contains(got.Body.String(), test.text) {
				t.Errorf("response = %d %s; want %d ...%s...", got.Code, got.Body, test.status, test.text)
			}

			if test.status < 300 {
				return
			}

			var response struct{ Error, Fix string }
			if err := json.Unmarshal(got.Body.Bytes(), &response); err != nil || response.Error == "" || response.Fix == "" {
				t.Errorf("body = %s: %v, want error and fix", got.Body, err)
			}

			if strings.Contains(got.Body.String(), namespace) || strings.Contains(got.Body.String(), secret+`"`) {
				t.Errorf("the response reveals internal data: %s", got.Body)
			}
		})
	}

	jobs := listJobs(t, namespace)
	if len(jobs) != 2 || jobs["gh-1"].Spec.State != v1alpha1.JobQueued || jobs["gh-2"].Spec.State != v1alpha1.JobQueued {
		t.Errorf("ledger = %v", jobs)
	}

	if labels := jobs["gh-1"].Labels; labels[v1alpha1.LabelJobState] != "Queued" || labels[v1alpha1.LabelPlatform] != "github-actions" {
		t.Errorf("labels = %v", labels)
	}

	if _, err := time.Parse(time.RFC3339, jobs["gh-1"].Annotations[demand.AnnotationLastSeen]); err != nil {
		t.Errorf("annotations = %v: %v", jobs["gh-1"].Annotations, err)
	}

	if jobs["gh-1"].Spec.ReceivedAt == nil || jobs["gh-1"].Spec.RunnerName != "" {
		t.Errorf("spec = %+v", jobs["gh-1"].Spec)
	}

	if count := testutil.CollectAndCount(registry, "hyperfleet_webhooks_total"); count < 9 {
		t.Errorf("%d kinds of results are counted", count)
	}
}

// For any order and number of webhooks, the ledger has one object with the last state.
func TestReceiverIsIdempotent(t *testing.T) {
	t.Parallel()

	namespace, repository := env.Namespace(t), newUniqueName(t)+"/app"
	createPool(t, namespace, "linux", repository, "s", "linux")

	receiver := newTestReceiver(env.Client, nil)
	statuses := []string{"completed", "queued", "in_progress", "queued", "waiting", "completed", "in_progress"}

	var group sync.WaitGroup
	for _, status := range slices.Concat(statuses, statuses) {
		group.Go(func() {
			if got := serveRequest(receiver, newWebhookRequest(newWebhookBody(repository, 9, status, "linux"), "s")); got.Code != 202 {
				t.Errorf("%s: %d %s", status, got.Code, got.Body)
			}
		})
	}

	group.Wait()

	moveBatches(t, namespace)

	jobs := listJobs(t, namespace)
	if got := jobs["gh-9"].Spec; len(jobs) != 1 || got.State != v1alpha1.JobCompleted || got.RunnerName != "r1" || got.Conclusion != "success" {
		t.Errorf("ledger = %+v", jobs)
	}
}

// A webhook that is being written when its request ends, as all requests do when the operator ends, is written. GitHub does
// not deliver it again.
func TestWebhookIsWrittenAtTheEnd(t *testing.T) {
	t.Parallel()

	namespace, repository := env.Namespace(t), newUniqueName(t)+"/app"
	createPool(t, namespace, "linux", repository, "s", "linux")

	ctx, end := context.WithCancel(t.Context())
	slow := interceptor.NewClient(noWatchClient{env.Client}, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			end()

			return c.Create(ctx, obj, opts...)
		},
	})

	request := newWebhookRequest(newWebhookBody(repository, 9, "queued", "linux"), "s").WithContext(ctx)
	if got := serveRequest(newTestReceiver(slow, nil), request); got.Code != http.StatusAccepted || len(listJobs(t, namespace)) != 1 {
		t.Errorf("response %d %s, jobs %v; want 202 and one job", got.Code, got.Body, listJobs(t, namespace))
	}
}

// A pool receives only webhooks that are signed with its own secret.
func TestReceiverKeepsNamespacesApart(t *testing.T) {
	t.Parallel()

	repository := newUniqueName(t) + "/app"
	first, second, third := env.Namespace(t), env.Namespace(t), env.Namespace(t)
	createPool(t, first, "a", repository, "shared")
	createPool(t, first, "b", repository, "shared")
	createPool(t, second, "a", repository, "shared")
	createPool(t, third, "a", repository, "other")

	if got := serveRequest(newTestReceiver(env.Client, nil), newWebhookRequest(newWebhookBody(repository, 5, "queued", "self-hosted"), "shared")); got.Code != 202 {
		t.Fatalf("response = %d %s", got.Code, got.Body)
	}

	for namespace, want := range map[string]int{first: 1, second: 1, third: 0} {
		if got := len(listJobs(t, namespace)); got != want {
			t.Errorf("%d jobs, want %d", got, want)
		}
	}
}

// TestRefusalsOfOtherNamespaces checks that a namespace that is being deleted, or whose quota allows no jobs, keeps a
// webhook from no other namespace. The CI platform has to deliver a webhook again only because of the quota.
func TestRefusalsOfOtherNamespaces(t *testing.T) {
	t.Parallel()

	for name, tt := range map[string]struct {
		refuse func(t *testing.T, namespace string)
		want   int
	}{
		"it is being deleted": {deleteNamespace, 202},
		"its quota":           {forbidJobs, 503},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			repository := newUniqueName(t) + "/app"
			namespaces := []string{env.Namespace(t), env.Namespace(t), env.Namespace(t)}
			slices.Sort(namespaces)

			for _, namespace := range namespaces {
				createPool(t, namespace, "a", repository, "shared")
			}

			tt.refuse(t, namespaces[0])

			got := serveRequest(newTestReceiver(env.Client, nil), newWebhookRequest(newWebhookBody(repository, 5, "queued", "self-hosted"), "shared"))
			if got.Code != tt.want {
				t.Errorf("response = %d %s, want %d", got.Code, got.Body, tt.want)
			}

			for i, want := range []int{0, 1, 1} {
				if jobs := listJobs(t, namespaces[i]); len(jobs) != want {
					t.Errorf("namespace %d has %d jobs, want %d", i, len(jobs), want)
				}
			}
		})
	}
}

// deleteNamespace deletes a namespace. No controller runs that would end the deletion.
func deleteNamespace(t *testing.T, namespace string) {
	t.Helper()

	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if err := env.Client.Delete(t.Context(), object); err != nil {
		t.Fatal(err)
	}

	waitForRefusal(t, namespace)
}

// forbidJobs sets a quota that allows no RunnerJobs in the namespace. No controller computes its usage.
func forbidJobs(t *testing.T, namespace string) {
	t.Helper()

	amounts := corev1.ResourceList{"count/runnerjobs.hyperfleet.io": resource.MustParse("0")}
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "none"}, Spec: corev1.ResourceQuotaSpec{Hard: amounts},
	}
	env.Create(t, quota)

	quota.Status = corev1.ResourceQuotaStatus{Hard: amounts, Used: amounts}
	if err := env.Client.Status().Update(t.Context(), quota); err != nil {
		t.Fatal(err)
	}

	waitForRefusal(t, namespace)
}

// waitForRefusal waits until the admission of the API server, which reads from a cache, refuses new jobs.
func waitForRefusal(t *testing.T, namespace string) {
	t.Helper()

	probe := &v1alpha1.RunnerJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "probe"},
		Spec:       workload.Job{Platform: v1alpha1.WorkloadGitHubActions, ID: "1", Repository: "acme/app", State: v1alpha1.JobQueued},
	}

	timing.WaitUntil(t, "the API server refuses jobs", func() bool {
		return apierrors.IsForbidden(env.Client.Create(t.Context(), probe.DeepCopy(), client.DryRunAll))
	})
}

// The IDs of jobs are no secret, and the secret of a webhook may prove only its repository. Otherwise, the holder of one
// secret could end the jobs of other repositories in the same namespace, before or after they are queued.
func TestWebhooksChangeNoJobsOfOthers(t *testing.T) {
	t.Parallel()

	victim := newUniqueName(t)
	for name, attacker := range map[string]string{"of another owner": victim + "-attacker/app", "of the same owner": victim + "/attacker"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testJobsOfVictim(t, victim+"/app", attacker)
		})
	}
}

func testJobsOfVictim(t *testing.T, victim, attacker string) {
	t.Helper()

	namespace := env.Namespace(t)
	createPool(t, namespace, "victim", victim, "of the victim", "linux")
	createPool(t, namespace, "attacker", attacker, "of the attacker", "linux")

	receiver := newTestReceiver(env.Client, nil)

	for _, sent := range []struct {
		repository, secret, status string
		id                         int
	}{
		{victim, "of the victim", "queued", 5}, {attacker, "of the attacker", "completed", 5}, {victim, "of the victim", "in_progress", 5},
		{attacker, "of the attacker", "completed", 6}, {victim, "of the victim", "queued", 6}, {victim, "of the victim", "queued", 6},
	} {
		if got := serveRequest(receiver, newWebhookRequest(newWebhookBody(sent.repository, sent.id, sent.status, "linux"), sent.secret)); got.Code != 202 {
			t.Fatalf("response = %d %s", got.Code, got.Body)
		}
	}

	got := map[string]v1alpha1.JobState{}

	for _, job := range listJobs(t, namespace) {
		if job.Spec.Repository == victim {
			got[job.Spec.ID] += job.Spec.State
		}
	}

	if len(got) != 2 || got["5"] != v1alpha1.JobRunning || got["6"] != v1alpha1.JobQueued {
		t.Errorf("jobs of the victim = %v, want 5 Running and 6 Queued, one of each", got)
	}
}

// Only a pool of the enterprise shows, with its secret, that a job belongs to the enterprise. Without this, the holder
// of the secret of one repository could request machines of an enterprise's pool in the same namespace.
func TestReceiverKeepsEnterprisesApart(t *testing.T) {
	t.Parallel()

	namespace, repository := env.Namespace(t), newUniqueName(t)+"/app"
	createPool(t, namespace, "app", repository, "of the repository", "linux")
	createEnterprisePool(t, namespace, "corp", "of the enterprise")

	for id, secret := range map[int]string{5: "of the repository", 6: "of the enterprise"} {
		if got := serveRequest(newTestReceiver(env.Client, nil), newWebhookRequest(newWebhookBody(repository, id, "queued", "linux"), secret)); got.Code != 202 {
			t.Fatalf("response = %d %s", got.Code, got.Body)
		}
	}

	jobs := listJobs(t, namespace)
	if of := jobs["gh-5"].Spec.Enterprise; of != "" {
		t.Errorf("a job with the secret of the repository is of the enterprise %q", of)
	}

	if of := jobs["gh-6"].Spec.Enterprise; of != "corp" {
		t.Errorf("a job with the secret of the enterprise's pool is of the enterprise %q, want corp", of)
	}
}

// createEnterprisePool creates a pool of the enterprise corp that receives webhooks, with its template and Secret.
func createEnterprisePool(t *testing.T, namespace, name, secret string) {
	t.Helper()

	template := &v1alpha1.HypervisorMachineTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "linux"},
		Spec: v1alpha1.HypervisorMachineTemplateSpec{
			HypervisorClusterRef: v1alpha1.LocalObjectReference{Name: "pve"},
			Template:             v1alpha1.TemplateSource{Proxmox: &v1alpha1.ProxmoxTemplate{TemplateName: "debian"}},
			Resources:            v1alpha1.MachineResources{CPU: 1, Memory: resource.MustParse("1Gi")},
		},
	}
	template.Spec.Bootstrap.Config = &v1alpha1.BootstrapConfig{GitHub: &v1alpha1.GitHubBootstrap{
		Enterprise:  "corp",
		Credentials: &v1alpha1.SecretValueSource{SecretKeyRef: v1alpha1.SecretKeySelector{Name: name, Key: "token"}},
	}}
	env.Create(t, template)
	createPool(t, namespace, name, "", secret, "linux")
}

// countingSecrets counts the reads of Secrets.
type countingSecrets struct {
	demand.SecretReader

	reads atomic.Int64
}

func (c *countingSecrets) ReadValue(ctx context.Context, selector v1alpha1.SecretKeySelector, namespace string) (string, error) {
	c.reads.Add(1)

	return c.SecretReader.ReadValue(ctx, selector, namespace)
}

// A namespace cannot delay the webhooks of other namespaces with many pools that have the same scope.
func TestManyPoolsDelayNoWebhook(t *testing.T) {
	t.Parallel()

	hostile, victim, repository := env.Namespace(t), env.Namespace(t), newUniqueName(t)+"/app"
	createPool(t, victim, "linux", repository, "of the victim", "linux")

	for i := range 100 {
		createPool(t, hostile, "p"+strconv.Itoa(i), repository, "guess "+strconv.Itoa(i), "linux")
	}

	secrets := &countingSecrets{SecretReader: &connect.Secrets{Reader: env.Client}}
	receiver := newTestReceiver(env.Client, nil, func(config *demand.ReceiverConfig) { config.Secrets = secrets })

	if got := serveRequest(receiver, newWebhookRequest(newWebhookBody(repository, 5, "queued", "linux"), "of the victim")); got.Code != 202 {
		t.Errorf("response = %d %s", got.Code, got.Body)
	}

	if reads := secrets.reads.Load(); reads > 64 {
		t.Errorf("one webhook caused %d reads of Secrets, want at most 32 for each namespace", reads)
	}
}

func TestReceiverSecretRotation(t *testing.T) {
	t.Parallel()

	namespace, repository := env.Namespace(t), newUniqueName(t)+"/app"
	createPool(t, namespace, "linux", repository, "old")

	clk := clocktesting.NewFakeClock(time.Now())
	receiver := newTestReceiver(env.Client, clk)
	send := func(secret string) int {
		return serveRequest(receiver, newWebhookRequest(newWebhookBody(repository, 5, "queued", "self-hosted"), secret)).Code
	}

	if got := send("old"); got != 202 {
		t.Fatalf("the old secret: status %d", got)
	}

	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "linux"}, Data: map[string][]byte{"secret": []byte("new")}}
	if err := env.Client.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}

	if got := send("new"); got != 401 {
		t.Errorf("a secret that was read recently is read again: status %d", got)
	}

	clk.Step(3 * time.Second)

	if got := send("new"); got != 202 {
		t.Errorf("the new secret: status %d", got)
	}

	clk.Step(time.Second)

	if got := send("old"); got != 401 {
		t.Errorf("the old secret after the rotation: status %d", got)
	}
}
