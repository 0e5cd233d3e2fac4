// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/runners/logstore"
	"github.com/hyperfleet/hyperfleet/runners/report"
	"github.com/hyperfleet/hyperfleet/test/s3"
	"github.com/hyperfleet/hyperfleet/test/scrape"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

const (
	bucket  = "ci-logs"
	logText = "make: all is well\n"
)

// logFixture is a fixture with a namespace and a job. Its logs are stored with the credentials of a Secret in
// the namespace.
type logFixture struct {
	namespace string
	store     *logstore.Store
	metrics   *prometheus.Registry
}

func newLogFixture(t *testing.T, url string, annotations map[string]string) *logFixture {
	t.Helper()

	w := &logFixture{namespace: env.Namespace(t), metrics: prometheus.NewRegistry()}
	env.Create(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "log-store", Annotations: annotations},
		Data:       map[string][]byte{"accessKeyId": []byte(s3.KeyID), "secretAccessKey": []byte(s3.Secret)},
	})

	createJob(t, w.namespace, "7", "r")

	w.store = &logstore.Store{
		Config: config.LogStore{
			Endpoint: url, Region: s3.Region, Bucket: bucket, Prefix: "hyperfleet/", Secret: "log-store",
		},
		Secrets:   &connect.Secrets{Reader: env.Client, OperatorNamespace: w.namespace},
		Transport: bounds.SharedTransport(),
	}

	return w
}

// runController runs the controller until stop is called.
func (w *logFixture) runController(t *testing.T) (stop func()) {
	t.Helper()

	return env.StartManager(t, w.namespace, func(_ context.Context, mgr ctrl.Manager) error {
		metrics, err := logstore.NewMetrics(w.metrics)
		if err != nil {
			return err
		}

		return (&logstore.Reconciler{
			Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Store: w.store, Metrics: metrics,
			Recorder: mgr.GetEventRecorder("hyperfleet"),
		}).SetupWithManager(mgr)
	})
}

// keepLog writes the log of a machine to a RunnerLog, as a report does.
func (w *logFixture) keepLog(t *testing.T, claim string, info v1alpha1.BootstrapInfo) {
	t.Helper()

	err := (&report.Logs{Client: env.Client, UploadEnabled: true}).Keep(t.Context(), &v1alpha1.MachineClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: claim},
		Spec:       v1alpha1.MachineClaimSpec{RunnerPoolRef: &v1alpha1.LocalObjectReference{Name: "linux"}},
		Status:     v1alpha1.MachineClaimStatus{BootstrapInfo: &info},
	}, logText)
	if err != nil {
		t.Fatal(err)
	}
}

func (w *logFixture) getLog(t *testing.T, name string) *v1alpha1.RunnerLog {
	t.Helper()

	return getObject(t, w.namespace, name, &v1alpha1.RunnerLog{})
}

func (w *logFixture) countWrites(t *testing.T, outcome string) float64 {
	t.Helper()

	return scrape.SumOf(t, w.metrics, "hyperfleet_runner_log_writes_total", fmt.Sprintf("outcome=%q", outcome))
}

// A log is moved to the store, and the RunnerLog holds its location. This also works if the job of the log
// becomes known only afterwards.
func TestLogsGoToTheStore(t *testing.T) {
	t.Parallel()

	server := s3.Start(t)
	server.CreateBucket(t, bucket)

	w := newLogFixture(t, server.URL, map[string]string{v1alpha1.AnnotationAllowedServers: strings.TrimPrefix(server.URL, "http://")})
	w.runController(t)
	w.keepLog(t, "linux-a", v1alpha1.BootstrapInfo{Job: "gh-7"})
	timing.WaitUntil(t, "the log is stored", func() bool { return w.getLog(t, "linux-a-log").Spec.Stored != nil })

	got := w.getLog(t, "linux-a-log")
	key := "hyperfleet/" + w.namespace + "/linux-a-5916df95c2e9.log"
	want := v1alpha1.RunnerLogSpec{Claim: "linux-a", Stored: &v1alpha1.StoredLog{
		Endpoint: server.URL, Region: s3.Region, Bucket: bucket, Key: key, Bytes: int64(len(logText)),
	}}

	if diff := cmp.Diff(want, got.Spec); diff != "" {
		t.Error(diff)
	}

	if _, pending := got.Labels[v1alpha1.LabelLogStore]; pending || got.Labels[v1alpha1.LabelLogsOf] != "gh-7" {
		t.Errorf("labels %v", got.Labels)
	}

	if diff := cmp.Diff(map[string]string{key: logText}, server.ReadObjects(t, bucket)); diff != "" {
		t.Error(diff)
	}

	// This log has no job yet.
	w.keepLog(t, "linux-b", v1alpha1.BootstrapInfo{})
	timing.WaitUntil(t, "the log without a job is stored", func() bool { return len(server.ReadObjects(t, bucket)) == 2 })
	timing.WaitUntil(t, "its location is recorded", func() bool { return w.getLog(t, "linux-b-log").Spec.Stored != nil })

	if name, err := (&report.Logs{Client: env.Client}).Find(t.Context(), w.namespace, "linux-b"); err != nil || name != "linux-b-log" {
		t.Fatalf("Find = %s, %v", name, err)
	}

	if stored := w.countWrites(t, "stored"); stored != 2 {
		t.Errorf("%v writes", stored)
	}
}

// While the store is unavailable, logs stay in the cluster. The operator may restart in the meantime.
func TestUnavailableStore(t *testing.T) {
	t.Parallel()

	server := s3.Start(t)
	server.CreateBucket(t, bucket)
	server.Stop(t)

	w := newLogFixture(t, server.URL, nil)
	stop := w.runController(t)
	w.keepLog(t, "linux-a", v1alpha1.BootstrapInfo{Job: "gh-7"})
	timing.WaitUntil(t, "a write fails", func() bool { return w.countWrites(t, "failed") > 0 })
	timing.WaitUntil(t, "an event reports the failure", func() bool {
		var list eventsv1.EventList
		if err := env.Client.List(t.Context(), &list, client.InNamespace(w.namespace)); err != nil {
			t.Fatal(err)
		}

		return len(list.Items) > 0 && list.Items[0].Reason == logstore.ReasonNotStored && list.Items[0].Regarding.Name == "gh-7" &&
			strings.Contains(list.Items[0].Note, "until a retry succeeds): write s3://"+bucket)
	})
	stop()

	if got := w.getLog(t, "linux-a-log"); got.Spec.Text != logText || got.Spec.Stored != nil {
		t.Errorf("while the store is unavailable: %+v", got.Spec)
	}

	server.Run(t)

	w.metrics = prometheus.NewRegistry()
	w.runController(t)
	timing.WaitUntil(t, "the log is stored", func() bool { return w.getLog(t, "linux-a-log").Spec.Stored != nil })
}

// If the store always refuses, the controller stops retrying, and the log stays in the cluster.
func TestRetriesEnd(t *testing.T) {
	t.Parallel()

	calls := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		calls++

		w.WriteHeader(http.StatusForbidden)
	}))
	t.Cleanup(server.Close)

	w := newLogFixture(t, server.URL, nil)
	w.keepLog(t, "linux-a", v1alpha1.BootstrapInfo{Job: "gh-7"})

	metrics, err := logstore.NewMetrics(w.metrics)
	if err != nil {
		t.Fatal(err)
	}

	recorder := events.NewFakeRecorder(10)
	reconciler := &logstore.Reconciler{Client: env.Client, Live: env.Client, Store: w.store, Metrics: metrics, Recorder: recorder}
	request := reconcile.Request{NamespacedName: client.ObjectKey{Namespace: w.namespace, Name: "linux-a-log"}}

	var waits []time.Duration

	for range 25 {
		result, err := reconciler.Reconcile(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}

		waits = append(waits, result.RequeueAfter/time.Second)
	}

	want := []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600, 600, 600, 600, 600, 600, 600, 600, 0, 0, 0, 0, 0, 0}
	if diff := cmp.Diff(want, waits); diff != "" || calls != 20 {
		t.Errorf("%d calls; waits in seconds:\n%s", calls, diff)
	}

	got := w.getLog(t, "linux-a-log")
	if got.Spec.Text != logText || got.Labels[v1alpha1.LabelLogStore] != v1alpha1.LogStoreFailed || !strings.Contains(got.Spec.NotStored, "AccessDenied") {
		t.Errorf("the log: %v %+v", got.Labels, got.Spec)
	}

	if len(recorder.Events) != 2 || w.countWrites(t, "failed") != 19 || w.countWrites(t, "given_up") != 1 {
		t.Errorf("%d events, %v failed, %v given up", len(recorder.Events), w.countWrites(t, "failed"), w.countWrites(t, "given_up"))
	}

	if problems, err := testutil.GatherAndLint(w.metrics); err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}

// The credentials are sent only to servers that their Secret allows.
func TestKeysAreSentOnlyToAllowedServers(t *testing.T) {
	t.Parallel()

	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the store was called") }))
	t.Cleanup(server.Close)

	w := newLogFixture(t, server.URL, map[string]string{v1alpha1.AnnotationAllowedServers: "s3.example.com"})
	w.keepLog(t, "linux-a", v1alpha1.BootstrapInfo{Job: "gh-7"})

	recorder := events.NewFakeRecorder(10)
	reconciler := &logstore.Reconciler{Client: env.Client, Live: env.Client, Store: w.store, Recorder: recorder}

	_, err := reconciler.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Namespace: w.namespace, Name: "linux-a-log"}})
	if err != nil {
		t.Fatal(err)
	}

	if event := <-recorder.Events; !strings.Contains(event, "annotate the secret with hyperfleet.io/allowed-servers=127.0.0.1") {
		t.Error(event)
	}
}
