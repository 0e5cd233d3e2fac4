// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/demand"
	"github.com/hyperfleet/hyperfleet/runners/guestapi"
	"github.com/hyperfleet/hyperfleet/runners/report"
	"github.com/hyperfleet/hyperfleet/test/heap"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// reportFixture is a fixture with a report handler, its inbox, and the claim that receives the reports.
type reportFixture struct {
	t          *testing.T
	client     client.WithWatch
	handler    *report.Handler
	inbox      *report.Inbox
	reconciler *step.Reconciler
	enqueued   chan types.NamespacedName
	// enqueuedReconciles counts the reconciles that were enqueued for a waiting machine.
	enqueuedReconciles, writes int
	creates                    atomic.Int32
}

func newReportFixture(t *testing.T, info v1alpha1.BootstrapInfo) *reportFixture {
	t.Helper()

	claim := &v1alpha1.MachineClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "linux-a", UID: "u-1"}}
	claim.Status.BootstrapInfo = &info
	o := &reportFixture{t: t, enqueued: make(chan types.NamespacedName, 100)}
	o.client = fake.NewClientBuilder().WithScheme(env.Scheme).WithObjects(claim).WithStatusSubresource(claim).
		WithIndex(&v1alpha1.RunnerJob{}, demand.IndexRunnerName, func(obj client.Object) []string {
			job, _ := obj.(*v1alpha1.RunnerJob)

			return []string{job.Spec.RunnerName}
		}).
		WithInterceptorFuncs(interceptor.Funcs{Create: func(
			ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption,
		) error {
			o.creates.Add(1)

			return c.Create(ctx, obj, opts...)
		}, SubResourcePatch: func(
			ctx context.Context, c client.Client, sub string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption,
		) error {
			o.writes++

			return c.SubResource(sub).Patch(ctx, obj, patch, opts...)
		}}).Build()
	o.inbox = &report.Inbox{Enqueue: func(name types.NamespacedName, waitsFor bool) {
		o.enqueued <- name

		if waitsFor {
			o.enqueuedReconciles++
		}
	}}
	o.handler = &report.Handler{
		Client: o.client, Inbox: o.inbox, Key: key, Clock: clocktesting.NewFakePassiveClock(time.Unix(1000, 0)),
	}
	o.reconciler = &step.Reconciler{Client: o.client, Controller: "claims"}

	return o
}

// openInbox opens the inbox, as on the leader.
func (o *reportFixture) openInbox() context.CancelFunc {
	o.t.Helper()

	ctx, cancel := context.WithCancel(o.t.Context())
	done := make(chan struct{})

	go func() {
		defer close(done)

		_ = o.inbox.Start(ctx)
	}()

	o.t.Cleanup(func() { cancel(); <-done })

	// The inbox is open as soon as a report enqueues a reconcile instead of writing the status.
	for deadline := time.Now().Add(time.Minute); len(o.enqueued) == 0; time.Sleep(10 * time.Millisecond) {
		o.sendReportAs(o.getClaim(), guest.Report{Phase: guest.PhaseStarted, Message: rand.Text()})

		if time.Now().After(deadline) {
			o.t.Fatal("the inbox does not open")
		}
	}

	o.reconcileOnce(step.Done())
	o.writes = 0

	return cancel
}

// drain forgets the reconciles that were enqueued so far.
func (o *reportFixture) drain() {
	for len(o.enqueued) > 0 {
		<-o.enqueued
	}
}

func (o *reportFixture) sendReport(phase guest.Phase) int {
	o.t.Helper()

	return o.sendReportAs(o.getClaim(), guest.Report{Phase: phase, Reason: "r"})
}

func (o *reportFixture) sendReportAs(claim *v1alpha1.MachineClaim, sent guest.Report) int {
	o.t.Helper()

	return sendReportTo(o.t, o.handler, claim, sent).Code
}

func (o *reportFixture) getClaim() *v1alpha1.MachineClaim {
	o.t.Helper()

	var claim v1alpha1.MachineClaim
	if err := o.client.Get(o.t.Context(), client.ObjectKey{Namespace: "ci", Name: "linux-a"}, &claim); err != nil {
		o.t.Fatal(err)
	}

	return &claim
}

// reconcileOnce reconciles the claim once, as the controller of claims does.
func (o *reportFixture) reconcileOnce(result step.Result) {
	o.t.Helper()

	claim := o.getClaim()
	steps := []step.Step[*v1alpha1.MachineClaim]{{Name: "Reported", Run: func(ctx context.Context, c *v1alpha1.MachineClaim) step.Result {
		o.inbox.Apply(ctx, c)

		return result
	}}}

	if _, err := step.ReconcileSteps(o.t.Context(), o.reconciler, claim, steps, claim); err != nil {
		o.t.Error(err)
	}
}

// Reports of states that the operator also learns from other sources get a response at once, and are
// written with the next status update. No report is lost, and no report is written twice.
func TestReportsAreWrittenTogether(t *testing.T) {
	t.Parallel()

	o := newReportFixture(t, v1alpha1.BootstrapInfo{})
	o.openInbox()

	for _, phase := range []guest.Phase{guest.PhaseDownloading, guest.PhaseConfiguring} {
		if code := o.sendReport(phase); code != http.StatusNoContent {
			t.Errorf("status %d", code)
		}

		o.reconcileOnce(step.Wait(time.Minute, "WaitingForRunner", "x").DeferWrite())
	}

	o.sendReport(guest.PhaseListening)
	o.reconcileOnce(step.Done())
	o.reconcileOnce(step.Done())

	if got := o.getClaim(); o.writes != 1 || got.Status.BootstrapInfo.GuestPhase != string(guest.PhaseListening) {
		t.Errorf("%d writes, recorded: %+v", o.writes, got.Status.BootstrapInfo)
	}
}

// If the controller is slow, machines retry. The handler does not write the status itself, because the
// update of the controller would then fail with a conflict. The report is recorded once, with the time of
// the first attempt.
func TestAReportWaitsForItsController(t *testing.T) { //nolint:paralleltest // it has its own clock
	synctest.Test(t, func(t *testing.T) {
		o := newReportFixture(t, v1alpha1.BootstrapInfo{BoundJob: "gh-7"})
		o.handler.Clock, o.handler.Logs = clock.RealClock{}, &report.Logs{Client: o.client}
		o.openInbox()
		o.enqueuedReconciles = 0

		reportedAt := time.Now()
		finish := func() int {
			return o.sendReportAs(o.getClaim(), guest.Report{Phase: guest.PhaseFinished, Reason: "r", Log: "all is well"})
		}

		for range 2 {
			if code := finish(); code != http.StatusServiceUnavailable || o.writes != 0 {
				t.Errorf("status %d after %d writes", code, o.writes)
			}
		}

		answered := make(chan int, 1)

		go func() { answered <- finish() }()

		synctest.Wait()
		o.reconcileOnce(step.Wait(time.Minute, "PoweringOff", "x").DeferWrite())

		// Each attempt asks for the RunnerJob first, and then for the status.
		if code := <-answered; code != http.StatusNoContent || o.writes != 1 || o.enqueuedReconciles != 6 {
			t.Errorf("status %d after %d writes; %d reconciles were enqueued at once", code, o.writes, o.enqueuedReconciles)
		}

		if got := o.getClaim().Status.BootstrapInfo; got.GuestReason != "r" || !got.ReportedAt.Time.Equal(reportedAt.Truncate(time.Microsecond)) {
			t.Errorf("recorded: %+v, want it at %s", got, reportedAt)
		}

		// The response may have been lost.
		if code := finish(); code != http.StatusNoContent || o.writes != 1 || o.enqueuedReconciles != 6 || o.creates.Load() != 1 {
			t.Errorf("repeated: status %d after %d writes; its log was created %d times", code, o.writes, o.creates.Load())
		}
	})
}

// A machine often reports its job just before the platform's webhook arrives. Its report then needs no write of its own. If no
// webhook arrives, it is written soon, because nobody else knows that a runner has the job.
func TestReportOfJobWaitsForItsWebhook(t *testing.T) { //nolint:paralleltest // it has its own clock
	for name, tc := range map[string]struct {
		phase        guest.Phase
		webhookAfter time.Duration
		isUrgent     bool
	}{
		"the webhook follows":             {guest.PhaseRunning, 300 * time.Millisecond, false},
		"the webhook is late":             {guest.PhaseRunning, 1500 * time.Millisecond, false},
		"no webhook arrives":              {guest.PhaseRunning, time.Hour, true},
		"the webhook follows a short job": {guest.PhaseFinished, 1500 * time.Millisecond, false},
		"no webhook of a short job":       {guest.PhaseFinished, time.Hour, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newReportFixture(t, v1alpha1.BootstrapInfo{RunnerName: "runner-a"})
				o.handler.Clock, o.handler.Logs = clock.RealClock{}, &report.Logs{Client: o.client}
				o.openInbox()
				o.enqueuedReconciles = 0

				begun, answered := time.Now(), make(chan int, 1)

				go func() { answered <- o.sendReport(tc.phase) }()

				time.Sleep(min(tc.webhookAfter, 3*time.Second))

				if !tc.isUrgent {
					job := &v1alpha1.RunnerJob{ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "gh-1"}}
					job.Spec.RunnerName = "runner-a"
					must.Do(t, o.client.Create(t.Context(), job))
				} else {
					synctest.Wait()
					o.reconcileOnce(step.Wait(time.Minute, "Idle", "x").DeferWrite())
				}

				if code := <-answered; code != http.StatusNoContent {
					t.Errorf("status %d", code)
				}

				isUrgent := o.enqueuedReconciles > 0
				if took := time.Since(begun); isUrgent != tc.isUrgent || (o.writes > 0) != tc.isUrgent || took > 4*time.Second {
					t.Errorf("urgent: %t, %d writes, response after %s; want urgent: %t", isUrgent, o.writes, took, tc.isUrgent)
				}
			})
		})
	}
}

// The handler writes the report itself if the controller does not finish its reconcile of the claim, or
// stops in the meantime.
func TestReportWaitIsLimited(t *testing.T) { //nolint:paralleltest // it has its own clock
	for name, end := range map[string]func(*reportFixture, context.CancelFunc){
		"its reconcile is stuck": func(o *reportFixture, _ context.CancelFunc) {
			for range 2 {
				o.sendReport(guest.PhaseFinished)
				time.Sleep(time.Second)
			}
		},
		"the leader ends": func(_ *reportFixture, cancel context.CancelFunc) { time.AfterFunc(time.Second, cancel) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newReportFixture(t, v1alpha1.BootstrapInfo{BoundJob: "gh-7"})
				o.handler.Clock = clock.RealClock{}
				end(o, o.openInbox())

				if code := o.sendReport(guest.PhaseFinished); code != http.StatusNoContent || o.writes != 1 {
					t.Errorf("status %d after %d writes", code, o.writes)
				}

				if got := o.getClaim().Status.BootstrapInfo; got.GuestPhase != string(guest.PhaseFinished) || got.GuestReason != "r" {
					t.Errorf("recorded: %+v", got)
				}
			})
		})
	}
}

// A report continues after the request has ended, because the machine has disconnected or the operator ends, and no longer
// than the operator waits for it.
func TestReportOutlivesItsRequest(t *testing.T) { //nolint:paralleltest // it has its own clock
	for name, delay := range map[string]time.Duration{"the API server is slow": 4 * time.Second, "it does not answer": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newReportFixture(t, v1alpha1.BootstrapInfo{})
				o.handler.Inbox, o.handler.Clock = nil, clock.RealClock{}
				o.handler.Client = interceptor.NewClient(o.client, interceptor.Funcs{SubResourcePatch: func(
					ctx context.Context, c client.Client, sub string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption,
				) error {
					if err := retry.Sleep(ctx, clock.RealClock{}, delay); err != nil {
						return err
					}

					return c.SubResource(sub).Patch(ctx, obj, patch, opts...)
				}})

				body := fmt.Sprintf(`{"phase": %q}`, guest.PhaseFinished)
				request := newReportRequest(t, o.getClaim(), strings.NewReader(body))

				ctx, end := context.WithCancel(t.Context())
				time.AfterFunc(time.Millisecond, end)

				start := time.Now()
				newReportServer(o.handler).ServeHTTP(httptest.NewRecorder(), request.WithContext(ctx))

				if took := time.Since(start); took > time.Millisecond+retry.EndGrace {
					t.Errorf("the report took %s, want at most %s after the end of its request", took, retry.EndGrace)
				}

				if isWritten := o.getClaim().Status.BootstrapInfo.GuestPhase != ""; isWritten != (delay < retry.EndGrace) {
					t.Errorf("the report was written: %t", isWritten)
				}
			})
		})
	}
}

// Machines that start at the same time report at the same time. No machine is refused because of the
// reports of other machines, and the last report with the log is not lost.
func TestConcurrentReports(t *testing.T) {
	t.Parallel()

	const fleet = 1000

	o := newReportFixture(t, v1alpha1.BootstrapInfo{RunnerName: "linux-a"})
	o.handler.Logs = &report.Logs{Client: o.client}
	o.openInbox()

	answers := map[int]int{}

	for number := range fleet {
		other := o.getClaim()
		other.Name = fmt.Sprintf("linux-%d", number)
		other.UID = types.UID(other.Name)

		for _, phase := range []guest.Phase{guest.PhaseStarted, guest.PhaseConfiguring, guest.PhaseListening} {
			answers[o.sendReportAs(other, guest.Report{Phase: phase})]++
		}
	}

	if answers[http.StatusGone] != 3*fleet { // the test has no claims for them
		t.Errorf("responses to the other machines: %v", answers)
	}

	if code := o.sendReportAs(o.getClaim(), guest.Report{Phase: guest.PhaseDownloading, Log: "x"}); code != http.StatusNoContent {
		t.Errorf("status %d", code)
	}

	o.handler.Inbox = nil // the handler writes the report before it responds
	if code := o.sendReportAs(o.getClaim(), guest.Report{Phase: guest.PhaseFinished, Log: "all is well"}); code != http.StatusNoContent {
		t.Errorf("last report: status %d", code)
	}

	var kept v1alpha1.RunnerLogList
	if err := o.client.List(t.Context(), &kept); err != nil || len(kept.Items) != 1 || kept.Items[0].Spec.Text != "all is well" {
		t.Errorf("logs: %+v, %v", kept.Items, err)
	}
}

// slowLog is the body of a report with a log that ends when the test ends it.
type slowLog struct {
	io.Reader

	activeReads *atomic.Int32
	end         <-chan struct{}
	once        sync.Once
}

func (s *slowLog) Read(p []byte) (int, error) {
	s.once.Do(func() {
		s.activeReads.Add(1)
		<-s.end
	})

	return s.Reader.Read(p)
}

// newRequest returns a report of the numbered machine.
func (o *reportFixture) newRequest(number int, body io.Reader, length int64) *http.Request {
	o.t.Helper()

	claim := o.getClaim()
	claim.Name = fmt.Sprintf("linux-%d", number)
	claim.UID = types.UID(claim.Name)

	request := newReportRequest(o.t, claim, body)
	request.ContentLength = length

	return request
}

// The memory for logs that are received at the same time is limited, however many machines send logs. Small
// reports do not wait for logs.
func TestConcurrentLogsAreLimited(t *testing.T) {
	t.Parallel()

	const (
		fleet   = 60
		largest = 8<<10 + 6*guest.MaxLog + 2
		most    = 8 << 20 / largest
	)

	o := newReportFixture(t, v1alpha1.BootstrapInfo{})
	o.openInbox()

	var (
		group   sync.WaitGroup
		reading atomic.Int32
	)

	end := make(chan struct{})

	for number := range fleet {
		group.Go(func() {
			body := &slowLog{Reader: strings.NewReader(`{"phase":"Finished","log":"x"}`), activeReads: &reading, end: end}
			answer := httptest.NewRecorder()
			newReportServer(o.handler).ServeHTTP(answer, o.newRequest(number, body, largest))

			if answer.Code != http.StatusGone { // the test has no claim for it
				t.Errorf("log %d: status %d: %s", number, answer.Code, answer.Body)
			}
		})
	}

	for deadline := time.Now().Add(time.Minute); reading.Load() < most; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d logs are read in parallel", reading.Load())
		}
	}

	if code := o.sendReport(guest.PhaseListening); code != http.StatusNoContent {
		t.Errorf("report without a log: status %d", code)
	}

	if now := reading.Load(); now != most {
		t.Errorf("%d logs are read in parallel, want %d", now, most)
	}

	close(end)
	group.Wait()
}

// Machines that send their logs slowly do not block the logs of other machines.
func TestSlowLogsAreCutShort(t *testing.T) {
	t.Parallel()

	o := newReportFixture(t, v1alpha1.BootstrapInfo{})
	o.openInbox()

	server := httptest.NewServer(newReportServer(o.handler))
	defer server.Close()

	post := func(number int, body io.Reader, length int64) (int, error) {
		request := o.newRequest(number, body, length)
		request.RequestURI = ""
		request.URL.Scheme, request.URL.Host = "http", server.Listener.Addr().String()

		answer, err := server.Client().Do(request)
		if err != nil {
			return 0, err
		}

		return answer.StatusCode, answer.Body.Close()
	}

	const slow = 20

	var group sync.WaitGroup

	for number := range slow {
		group.Go(func() {
			never, _ := io.Pipe()
			defer never.Close()

			if code, err := post(number, never, 8<<10+6*guest.MaxLog); err == nil && code < http.StatusBadRequest {
				t.Errorf("slow log %d: status %d", number, code)
			}
		})
	}

	time.Sleep(100 * time.Millisecond) // most requests have arrived

	log := fmt.Sprintf(`{"phase":"Finished","log":%q}`, strings.Repeat("x", guest.MaxLog-1))
	if code, err := post(slow, strings.NewReader(log), int64(len(log))); err != nil || code != http.StatusGone {
		t.Errorf("log after the slow logs: status %d, %v", code, err)
	}

	group.Wait()
}

// Rate limiters of deleted machines leave no memory allocated. The test uses three machines for each of ten
// thousand rounds, because one limiter is small.
func TestRateLimitersOfDeletedMachinesAreFreed(t *testing.T) { //nolint:paralleltest // it measures the heap
	limits, now := &guestapi.Limits{}, time.Unix(1e9, 0)

	heap.CheckNoLeak(t, "limits", func(number int) {
		for i := range 3 {
			now = now.Add(5 * time.Second)

			if refused := limits.CheckRate(types.UID(fmt.Sprintf("uid-%d-%d", number, i)), now); refused != nil {
				t.Fatalf("machine %d: %+v", number, refused)
			}
		}
	})
}

// anyClaimClient is a client that has a claim of every name. The UID of each claim is its name.
type anyClaimClient struct{ client.Client }

func (anyClaimClient) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	into.SetNamespace(key.Namespace)
	into.SetName(key.Name)
	into.SetUID(types.UID(key.Name))

	return nil
}

// Reports and rate limiters of machines that are no longer reconciled expire.
func TestReportsOfDeletedMachinesExpire(t *testing.T) { //nolint:paralleltest // it measures the heap
	o, clk := newReportFixture(t, v1alpha1.BootstrapInfo{}), clocktesting.NewFakePassiveClock(time.Unix(1e9, 0))
	o.openInbox()
	o.handler.Client, o.handler.Clock = anyClaimClient{}, clk

	heap.CheckNoLeak(t, "reports", func(number int) {
		clk.SetTime(clk.Now().Add(time.Second))

		claim := newClaim("ci", fmt.Sprintf("linux-%d", number))
		claim.UID = types.UID(claim.Name)

		code := o.sendReportAs(claim, guest.Report{Phase: guest.PhaseStarted, Message: strings.Repeat("m", 256)})
		if code != http.StatusNoContent || len(o.enqueued) == 0 {
			t.Fatalf("status %d, and %d reconciles were enqueued", code, len(o.enqueued))
		}

		for len(o.enqueued) > 0 {
			<-o.enqueued
		}
	})
}
