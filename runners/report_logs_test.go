// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/runners/report"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/workload"
)

// createReportingClaim creates a claim of a pool. Its runner is recorded, and it may have a job.
func createReportingClaim(t *testing.T, namespace, name string, info v1alpha1.BootstrapInfo) *v1alpha1.MachineClaim {
	t.Helper()

	out := newClaim(namespace, name)
	out.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "RunnerPool", Name: "linux", UID: "pool-uid", Controller: new(true),
	}}
	out.Spec.RunnerPoolRef = &v1alpha1.LocalObjectReference{Name: "linux"}
	out.Status.BootstrapInfo = &info

	return createClaim(t, out)
}

func createJob(t *testing.T, namespace, id, runner string) *v1alpha1.RunnerJob {
	t.Helper()

	out := &v1alpha1.RunnerJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "gh-" + id},
		Spec:       v1alpha1.RunnerJobSpec{Platform: v1alpha1.WorkloadGitHubActions, ID: id, State: v1alpha1.JobRunning, RunnerName: runner},
	}
	env.Create(t, out)

	return out
}

func newReportHandler(t testing.TB) *report.Handler {
	t.Helper()

	return &report.Handler{
		Client: env.Client, Logs: &report.Logs{Client: kube.NewIndexedClient(t, env.Client, demand.AddIndexes)}, Key: key,
		Clock: clocktesting.NewFakePassiveClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)),
	}
}

// sendReport sends a report of the claim's machine, and returns the status of the response.
func sendReport(t *testing.T, claim *v1alpha1.MachineClaim, body any) int {
	t.Helper()

	return sendReportTo(t, newReportHandler(t), claim, body).Code
}

// sendReportTo sends a report of the claim's machine. The body is a text, or a value that is encoded as JSON.
func sendReportTo(t *testing.T, handler http.Handler, claim *v1alpha1.MachineClaim, body any) *httptest.ResponseRecorder {
	t.Helper()

	text, ok := body.(string)
	if !ok {
		data, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}

		text = string(data)
	}

	answer := httptest.NewRecorder()
	newReportServer(handler).ServeHTTP(answer, newReportRequest(t, claim, strings.NewReader(text)))

	return answer
}

// newReportServer returns a server of the report route.
func newReportServer(handler http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle(report.Pattern, handler)

	return mux
}

// newReportRequest returns the request of the claim's machine.
func newReportRequest(t *testing.T, claim *v1alpha1.MachineClaim, body io.Reader) *http.Request {
	t.Helper()

	request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, vmspec.ReportPath(claim), body)
	request.Header.Set("Authorization", "Bearer "+vmspec.ReportToken(key, claim.Namespace, claim.Name, claim.UID))

	return request
}

func newFinishedReport(log string) guest.Report {
	return guest.Report{Phase: guest.PhaseFinished, Reason: guest.ReasonJobDone, Log: log}
}

func getLog(t *testing.T, namespace, name string) *v1alpha1.RunnerLog {
	t.Helper()

	return getObject(t, namespace, name, &v1alpha1.RunnerLog{})
}

func getLogName(claim *v1alpha1.MachineClaim) string {
	return report.LogName(workload.RunnerName(claim.Name, claim.UID))
}

func listLogs(t *testing.T, namespace string) []v1alpha1.RunnerLog {
	t.Helper()

	var out v1alpha1.RunnerLogList
	if err := env.Client.List(t.Context(), &out, client.InNamespace(namespace), client.HasLabels{v1alpha1.LabelLogsOf}); err != nil {
		t.Fatal(err)
	}

	return out.Items
}

// The output of the serial console is stored beside the log, without the machine's codes and without control sequences
// that a terminal would follow.
func TestConsoleIsKeptWithItsJob(t *testing.T) {
	t.Parallel()

	namespace := env.Namespace(t)
	ran := createJob(t, namespace, "7", "runner-7")
	claim := createReportingClaim(t, namespace, "linux-a", v1alpha1.BootstrapInfo{RunnerName: "runner-7"})
	keep := &report.Logs{Client: kube.NewIndexedClient(t, env.Client, demand.AddIndexes), Key: key}

	text := "\x1b[32mGRUB\x1b[0m\r\ncloud-init: token " + vmspec.ReportToken(key, namespace, claim.Name, claim.UID) +
		", code " + vmspec.ClaimCode(key, namespace, claim.Name, claim.UID) + "\n"

	for range 2 {
		if err := keep.KeepConsole(t.Context(), claim, text); err != nil {
			t.Fatal(err)
		}
	}

	kept := getLog(t, namespace, report.ConsoleName(workload.RunnerName(claim.Name, claim.UID)))
	if diff := cmp.Diff("GRUB\ncloud-init: token REDACTED, code REDACTED\n", kept.Spec.Text); diff != "" {
		t.Error(diff)
	}

	if owner := kept.OwnerReferences; len(owner) != 1 || owner[0].UID != ran.UID {
		t.Errorf("owner = %+v", owner)
	}

	if name, err := keep.Find(t.Context(), namespace, workload.RunnerName(claim.Name, claim.UID)); err != nil || name != "" {
		t.Errorf("the log of the runner is %q (%v), want none", name, err)
	}
}

// Without a place for logs, the end of a machine is recorded without its log.
func TestLogIsDropped(t *testing.T) {
	t.Parallel()

	namespace := env.Namespace(t)
	claim := createReportingClaim(t, namespace, "linux-a", v1alpha1.BootstrapInfo{RunnerName: "r", Job: "gh-7"})
	handler := newReportHandler(t)
	handler.Logs = nil

	if got := sendReportTo(t, handler, claim, newFinishedReport("output")); got.Code != http.StatusNoContent {
		t.Fatalf("status %d: %s", got.Code, got.Body)
	}

	if logs := listLogs(t, namespace); len(logs) > 0 {
		t.Errorf("kept %+v", logs)
	}

	if got := getObject(t, namespace, claim.Name, &v1alpha1.MachineClaim{}); got.Status.BootstrapInfo.GuestReason != guest.ReasonJobDone {
		t.Errorf("recorded %+v", got.Status.BootstrapInfo)
	}
}

func TestLogIsKeptWithItsJob(t *testing.T) {
	t.Parallel()

	cases := map[string]v1alpha1.BootstrapInfo{
		"the claim knows its job":              {RunnerName: "r", Job: "gh-7"},
		"the machine is bound to the job":      {RunnerName: "r", BoundJob: "gh-7"},
		"the platform has reported the runner": {RunnerName: "runner-7"},
		"the claim's job is deleted meantime":  {RunnerName: "runner-7", Job: "gh-6"},
	}
	for name, info := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			namespace := env.Namespace(t)
			ran := createJob(t, namespace, "7", "runner-7")
			claim := createReportingClaim(t, namespace, "linux-a", info)

			// A machine may send the report twice.
			for range 2 {
				if got := sendReport(t, claim, newFinishedReport("make: all is well\n")); got != http.StatusNoContent {
					t.Fatalf("status %d", got)
				}
			}

			kept := getLog(t, namespace, getLogName(claim))
			if diff := cmp.Diff("make: all is well\n", kept.Spec.Text); diff != "" {
				t.Error(diff)
			}

			owner := kept.OwnerReferences
			if len(owner) != 1 || owner[0].Kind != "RunnerJob" || owner[0].UID != ran.UID || owner[0].APIVersion != "hyperfleet.io/v1alpha1" {
				t.Errorf("owner = %+v", owner)
			}

			if kept.Labels["hyperfleet.io/logs-of"] != "gh-7" || kept.Spec.Claim != "linux-a" {
				t.Errorf("labels %v, claim %s", kept.Labels, kept.Spec.Claim)
			}

			keep := &report.Logs{Client: kube.NewIndexedClient(t, env.Client, demand.AddIndexes)}
			if name, err := keep.Find(t.Context(), namespace, workload.RunnerName(claim.Name, claim.UID)); err != nil || name != kept.Name {
				t.Errorf("Find = %q, %v", name, err)
			}

			if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(claim), claim); err != nil ||
				claim.Status.BootstrapInfo.GuestPhase != "Finished" || claim.Status.BootstrapInfo.GuestMessage != "JobDone" || claim.Status.Times.GuestStarted == nil {
				t.Errorf("report = %+v (%v)", claim.Status.BootstrapInfo, err)
			}
		})
	}
}

// A machine may have finished before its platform reports which job it ran.
func TestLogWaitsForItsJob(t *testing.T) {
	t.Parallel()

	namespace := env.Namespace(t)
	claim := createReportingClaim(t, namespace, "linux-a", v1alpha1.BootstrapInfo{RunnerName: "r"})

	if got := sendReport(t, claim, newFinishedReport("output")); got != http.StatusNoContent {
		t.Fatalf("status %d", got)
	}

	shelved := listLogs(t, namespace)
	if len(shelved) != 1 || len(shelved[0].OwnerReferences) != 0 || shelved[0].Labels["hyperfleet.io/logs-of"] != "linux-a" ||
		shelved[0].Labels["hyperfleet.io/log-shelf"] != "linux" || shelved[0].Spec.Text != "output" {
		t.Fatalf("log without a job: %+v", shelved)
	}

	keep := &report.Logs{Client: kube.NewIndexedClient(t, env.Client, demand.AddIndexes)}
	for runner, want := range map[string]string{workload.RunnerName(claim.Name, claim.UID): getLogName(claim), "linux-a": "", "r": ""} {
		if name, err := keep.Find(t.Context(), namespace, runner); err != nil || name != want {
			t.Errorf("Find(%s) = %q, %v", runner, name, err)
		}
	}
}

// Under load a response may take longer than the timeout of the machine.
func TestLogOfClosedConnection(t *testing.T) {
	t.Parallel()

	namespace := env.Namespace(t)
	claim := createReportingClaim(t, namespace, "linux-a", v1alpha1.BootstrapInfo{RunnerName: "r"})
	hungUp, cancel := context.WithCancel(t.Context())
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		cancel()
		newReportHandler(t).ServeHTTP(w, r.WithContext(hungUp))
	})
	sendReportTo(t, handler, claim, newFinishedReport("output"))

	if got := getLog(t, namespace, getLogName(claim)).Spec.Text; got != "output" {
		t.Errorf("stored %q", got)
	}
}

func TestLogIsBounded(t *testing.T) {
	t.Parallel()

	namespace := env.Namespace(t)
	ran := createJob(t, namespace, "7", "r")
	keep := &report.Logs{Client: kube.NewIndexedClient(t, env.Client, demand.AddIndexes)}
	claim := createReportingClaim(t, namespace, "linux-a", v1alpha1.BootstrapInfo{Job: ran.Name})

	line := strings.Repeat("€", 40) + "\n"
	if err := keep.Keep(t.Context(), claim, strings.Repeat(line, 1000)+"\xff the end"); err != nil {
		t.Fatal(err)
	}

	got := getLog(t, namespace, getLogName(claim))
	text := got.Spec.Text

	if len(text) > guest.MaxLog || len(text) < guest.MaxLog-len(line) || !utf8.ValidString(text) ||
		!strings.HasPrefix(text, line) || !strings.HasSuffix(text, "? the end") || !got.Spec.Cut {
		t.Errorf("%d bytes: %q ... %q", len(text), text[:50], text[len(text)-20:])
	}
}

func TestReportIsBounded(t *testing.T) { //nolint:tparallel // the code after the subtests needs all of them to be done
	t.Parallel()

	namespace := env.Namespace(t)
	createJob(t, namespace, "7", "r")
	claim := createReportingClaim(t, namespace, "linux-a", v1alpha1.BootstrapInfo{RunnerName: "r"})

	cases := []struct {
		name string
		body any
		want int
	}{
		{"no log before the end", guest.Report{Phase: guest.PhaseRunning, Log: "early"}, http.StatusNoContent},
		{"a null log", `{"phase":"Running","log":null}`, http.StatusNoContent},
		{"a log that is no text", `{"phase":"Finished","log":{"a":1}}`, http.StatusBadRequest},
		{"no JSON", "phase=Running", http.StatusBadRequest},
		{"no phase", `{"log":"x"}`, http.StatusBadRequest},
		{"an unknown phase", guest.Report{Phase: guest.Phase(strings.Repeat("x", 7000))}, http.StatusBadRequest},
		{"a large message", guest.Report{Phase: guest.PhaseRunning, Message: strings.Repeat("m", 9000)}, http.StatusRequestEntityTooLarge},
		{"a log that is too large", newFinishedReport(strings.Repeat("\x01", guest.MaxLog+4096)), http.StatusRequestEntityTooLarge},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			if got := sendReport(t, claim, tc.body); got != tc.want {
				t.Errorf("status %d, want %d", got, tc.want)
			}
		})
	}

	if got := listLogs(t, namespace); len(got) != 0 {
		t.Errorf("logs were stored: %+v", got)
	}

	// The largest possible log: each byte takes six bytes in JSON.
	if got := sendReport(t, claim, newFinishedReport(strings.Repeat("\x01", guest.MaxLog))); got != http.StatusNoContent {
		t.Errorf("status %d", got)
	}

	if got := len(getLog(t, namespace, getLogName(claim)).Spec.Text); got != guest.MaxLog {
		t.Errorf("%d bytes were stored", got)
	}

	// A newer claim of the same name is another machine.
	old := claim.DeepCopy()
	old.UID = "00000000-0000-4000-8000-00000000dead"

	if got := sendReport(t, old, newFinishedReport("x")); got != http.StatusGone {
		t.Errorf("status %d for a claim that was deleted", got)
	}
}

// The RBAC role of the operator is sufficient for its logs, and grants no more.
func TestLogPermissionsAreMinimal(t *testing.T) {
	t.Parallel()

	namespace := env.Namespace(t)
	createJob(t, namespace, "7", "r")
	env.Apply(t, "../deploy/base/namespace.yaml", "../deploy/base/serviceaccount.yaml",
		"../deploy/rbac/runners.yaml", "../deploy/base/rolebinding.yaml")

	limited, err := client.New(env.ServiceAccount(t, "hyperfleet-system", "hyperfleet-runners"), client.Options{Scheme: env.Scheme})
	if err != nil {
		t.Fatal(err)
	}

	claim := createReportingClaim(t, namespace, "linux-a", v1alpha1.BootstrapInfo{RunnerName: "r"})
	keep := &report.Logs{Client: kube.NewIndexedClient(t, limited, demand.AddIndexes)}

	for range 2 {
		if err := keep.Keep(t.Context(), claim, "output"); err != nil {
			t.Fatal(err)
		}
	}

	name, err := keep.Find(t.Context(), namespace, workload.RunnerName(claim.Name, claim.UID))
	if err != nil || name != getLogName(claim) {
		t.Errorf("Find = %q, %v", name, err)
	}

	if err := keep.Delete(t.Context(), namespace, name); err != nil || len(listLogs(t, namespace)) > 0 {
		t.Errorf("Drop = %v", err)
	}

	if err := limited.DeleteAllOf(t.Context(), &v1alpha1.RunnerLog{}, client.InNamespace(namespace)); !apierrors.IsForbidden(err) {
		t.Errorf("deletion of all RunnerLogs: %v, want forbidden", err)
	}
}

// TestReportsAreLimited checks that a machine that reports all the time causes no more work than a quiet
// machine.
func TestReportsAreLimited(t *testing.T) {
	t.Parallel()

	namespace := env.Namespace(t)
	createJob(t, namespace, "7", "r")
	claim := createReportingClaim(t, namespace, "linux-a", v1alpha1.BootstrapInfo{RunnerName: "r"})

	handler := newReportHandler(t)
	codes := map[int]int{}

	for i := range 133 {
		answer := sendReportTo(t, handler, claim, newFinishedReport(fmt.Sprintf("log %d", i)))
		codes[answer.Code]++

		if answer.Code == http.StatusTooManyRequests && answer.Header().Get("Retry-After") != "5" {
			t.Errorf("Retry-After %q, want 5", answer.Header().Get("Retry-After"))
		}
	}

	if diff := cmp.Diff(map[int]int{http.StatusNoContent: 16, http.StatusTooManyRequests: 117}, codes); diff != "" {
		t.Errorf("responses (-want +got):\n%s", diff)
	}

	if got := getLog(t, namespace, getLogName(claim)).Spec.Text; got != "log 0" {
		t.Errorf("stored %q, want the log of the first report", got)
	}
}

// createLogWithoutJob stores the log of a deleted machine whose job is unknown.
func createLogWithoutJob(t *testing.T, namespace, pool string, number int) *v1alpha1.MachineClaim {
	t.Helper()

	claim := newClaim(namespace, fmt.Sprintf("%s-%d", pool, number))
	claim.UID = types.UID(fmt.Sprintf("%08d-%s", number, pool))
	claim.Spec.TemplateRef.Name = pool

	if err := (&report.Logs{Client: kube.NewIndexedClient(t, env.Client, demand.AddIndexes)}).Keep(t.Context(), claim, "no luck"); err != nil {
		t.Fatal(err)
	}

	return claim
}

// Machines that never get a job leave a limited number of logs. No log is deleted that belongs to a job, or
// that may still be assigned to a job.
func TestLogsWithoutJobAreLimited(t *testing.T) {
	t.Parallel()

	namespace := env.Namespace(t)
	runner := func(claim *v1alpha1.MachineClaim) string { return workload.RunnerName(claim.Name, claim.UID) }

	here := client.NewNamespacedClient(env.Client, namespace) // the logs of other tests stay unchanged

	var claims []*v1alpha1.MachineClaim
	for i := range 40 {
		claims = append(claims, createLogWithoutJob(t, namespace, "linux", i))
	}

	createLogWithoutJob(t, namespace, "arm", 1)

	// A job with its log, a job whose runner is known, and a machine that exists.
	found := createJob(t, namespace, "7", "")
	found.Status.Logs = getLogName(claims[0])

	if err := env.Client.Status().Update(t.Context(), found); err != nil {
		t.Fatal(err)
	}

	createJob(t, namespace, "8", runner(claims[1]))

	alive := createReportingClaim(t, namespace, "linux-z", v1alpha1.BootstrapInfo{})
	if err := (&report.Logs{Client: kube.NewIndexedClient(t, env.Client, demand.AddIndexes)}).Keep(t.Context(), alive, "not gone"); err != nil {
		t.Fatal(err)
	}

	for _, tc := range []struct {
		after time.Duration
		want  int
		why   string
	}{
		{59 * time.Minute, 42, "updates of a job may be late"},
		{61 * time.Minute, 3 + 32 + 1, "logs with jobs, the newest of one pool, and the one of the other"},
		{23 * time.Hour, 3 + 32 + 1, "kept as long as jobs"},
		{25 * time.Hour, 3, "only logs with jobs are kept"},
	} {
		shelf := &report.LogGarbageCollector{
			Client: here, Live: here, Retention: 24 * time.Hour, Log: slog.New(slog.DiscardHandler),
			Clock: clocktesting.NewFakeClock(time.Now().Add(tc.after)),
		}

		for range 2 {
			if err := shelf.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
		}

		if got := len(listLogs(t, namespace)); got != tc.want {
			t.Errorf("after %s: %d logs, want %d: %s", tc.after, got, tc.want, tc.why)
		}

		for _, claim := range []*v1alpha1.MachineClaim{claims[0], claims[1], alive} {
			getLog(t, namespace, getLogName(claim))
		}
	}
}

// An operator that serves some namespaces deletes no logs of others, because it does not see their jobs.
func TestLogsOfOtherNamespacesAreKept(t *testing.T) {
	t.Parallel()

	own, other := env.Namespace(t), env.Namespace(t)
	createLogWithoutJob(t, own, "linux", 1)

	claim := createLogWithoutJob(t, other, "linux", 1)
	createJob(t, other, "7", workload.RunnerName(claim.Name, claim.UID))

	shelf := &report.LogGarbageCollector{
		Client: client.NewNamespacedClient(env.Client, own), Live: env.Client, Namespaces: []string{own},
		Retention: 24 * time.Hour, Log: slog.New(slog.DiscardHandler),
		Clock: clocktesting.NewFakeClock(time.Now().Add(25 * time.Hour)),
	}
	if err := shelf.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}

	if n := len(listLogs(t, own)); n != 0 {
		t.Errorf("%d logs, want none after the retention", n)
	}

	getLog(t, other, getLogName(claim))
}
