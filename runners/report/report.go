// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"crypto/hmac"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"golang.org/x/sync/semaphore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/tracing"
	"github.com/hyperfleet/hyperfleet/runners/guestapi"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
)

const (
	// Pattern is the route that Handler serves.
	Pattern = "POST /machines/{namespace}/{name}/{uid}/report"

	// maxBody bounds a report apart from its log; maxLogBody bounds the log as JSON, in
	// which one byte may take six.
	maxBody    = 8 << 10
	maxLogBody = 6*guest.MaxLog + 2
	maxMessage = 1024
	maxResult  = 64
	timeout    = 10 * time.Second

	// logRoom bounds the reports with logs that are in hand at once, in bytes. roomPatience is
	// how long one waits for room, and logTime how long it may take to arrive then.
	logRoom      = 8 << 20
	roomPatience = 3 * time.Second
	logTime      = 2 * time.Second

	// burst is how often a machine may report at once: each phase, with room for repeats.
	burst = 16
)

// phases are those that a machine may report.
func phases() []guest.Phase {
	return []guest.Phase{
		guest.PhaseStarted, guest.PhaseAttesting, guest.PhaseAttested, guest.PhaseDownloading, guest.PhaseConfiguring,
		guest.PhaseListening, guest.PhaseRunning, guest.PhaseFinished, guest.PhaseFailed,
	}
}

// Handler takes reports and writes them into the status of the machine's claim. It needs
// no leader: any replica may take a report.
type Handler struct {
	// Client writes the status.
	Client client.Client
	// Inbox brings reports to the claims' controller. May be nil: then they are written here.
	Inbox *Inbox
	// Logs keeps what the last report of a machine says of its runner's output. May be nil:
	// then it is dropped.
	Logs *Logs
	// Key signs the machines' tokens. It must outlive the process.
	Key []byte
	// Clock tells the time of a report; a machine's own clock may be wrong.
	Clock clock.PassiveClock

	once   sync.Once
	limits guestapi.Limits
	room   *semaphore.Weighted
}

// ServeHTTP takes one report.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	namespace, name, uid := r.PathValue("namespace"), r.PathValue("name"), types.UID(r.PathValue("uid"))

	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || !hmac.Equal([]byte(given), []byte(vmspec.ReportToken(h.Key, namespace, name, uid))) {
		http.Error(w, "the token is not this machine's", http.StatusUnauthorized)

		return
	}

	h.once.Do(func() {
		h.limits.Burst, h.limits.Each = burst, true
		h.room = semaphore.NewWeighted(logRoom)
	})

	if refused := h.limits.Genuine(uid, h.Clock.Now()); refused != nil {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(refused.After.Seconds()))))
		http.Error(w, refused.Message, refused.Status)

		return
	}

	leave, ok := h.enter(w, r)
	if !ok {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many machines send their logs: try again", http.StatusServiceUnavailable)

		return
	}
	defer leave()

	report, status, problem := readReport(w, r)
	if problem != "" {
		http.Error(w, problem, status)

		return
	}

	// What has come whole counts, also if the machine has not the time to wait for the answer:
	// it powers off, and nobody else has its log.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), timeout)
	defer cancel()

	h.answer(w, r, h.write(ctx, types.NamespacedName{Namespace: namespace, Name: name}, uid, report, leave))
}

// enter waits until there is room for a report with a log; leave gives it back, once. Others are
// small and wait for nobody. A machine that sends its log slowly keeps others waiting, and is cut
// short.
func (h *Handler) enter(w http.ResponseWriter, r *http.Request) (leave func(), ok bool) {
	size := r.ContentLength
	if size < 0 || size > maxBody+maxLogBody {
		size = maxBody + maxLogBody
	}

	if size <= maxBody {
		return func() {}, true
	}

	ctx, cancel := context.WithTimeout(r.Context(), roomPatience)
	defer cancel()

	if h.room.Acquire(ctx, size) != nil {
		return nil, false
	}

	// The next request on the connection gets a deadline of its own.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(logTime)) // a test's writer has none

	return sync.OnceFunc(func() { h.room.Release(size) }), true
}

// readReport reads a report, or says with what status and words it is refused.
func readReport(w http.ResponseWriter, r *http.Request) (guest.Report, int, string) {
	tooLarge := fmt.Sprintf("a report has at most %d bytes, and %d more of log", maxBody, maxLogBody)

	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody+maxLogBody))
	if err != nil {
		return guest.Report{}, http.StatusRequestEntityTooLarge, tooLarge
	}

	var report struct {
		guest.Report

		Log json.RawMessage `json:"log"`
	}
	if err := json.Unmarshal(body, &report); err != nil || report.Phase == "" {
		return guest.Report{}, http.StatusBadRequest, "a report is JSON with a phase"
	}

	if !slices.Contains(phases(), report.Phase) {
		return guest.Report{}, http.StatusBadRequest, fmt.Sprintf("the phase of a report is one of %v", phases())
	}

	if len(body)-len(report.Log) > maxBody {
		return guest.Report{}, http.StatusRequestEntityTooLarge, tooLarge
	}

	if len(report.Log) > 0 && json.Unmarshal(report.Log, &report.Report.Log) != nil {
		return guest.Report{}, http.StatusBadRequest, "the log of a report is a text"
	}

	return report.Report, 0, ""
}

func (h *Handler) answer(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case err == nil:
		w.WriteHeader(http.StatusNoContent)
	case apierrors.IsNotFound(err), errors.Is(err, errLater):
		http.Error(w, "the claim is gone", http.StatusGone)
	case errors.Is(err, errNotYet):
		w.Header().Set("Retry-After", "1")
		http.Error(w, errNotYet.Error()+": try again", http.StatusServiceUnavailable)
	default:
		log.FromContext(r.Context()).Error(err, "report was not written", "path", r.URL.Path)
		http.Error(w, "try again", http.StatusServiceUnavailable)
	}
}

// write patches the report into the claim, unless the claim of that name is a later one. It leaves
// as soon as the log is kept.
func (h *Handler) write(
	ctx context.Context, name types.NamespacedName, uid types.UID, report guest.Report, leave func(),
) error {
	var claim v1alpha1.MachineClaim
	if err := h.Client.Get(ctx, name, &claim); err != nil {
		return fmt.Errorf("get claim %s: %w", name, err)
	}

	if claim.UID != uid {
		return fmt.Errorf("get claim %s: %w", name, errLater)
	}

	kept := h.keepLog(ctx, &claim, report)
	report.Log = ""

	leave()

	message := report.Message
	if report.Reason != "" {
		message = strings.TrimSuffix(report.Reason+": "+report.Message, ": ")
	}

	heard := note{
		phase: report.Phase, message: trim(message, maxMessage), reason: trim(report.Reason, maxResult),
		result: trim(report.Result, maxResult), at: metav1.NewMicroTime(h.Clock.Now()), kept: kept,
	}
	tracing.Mark(tracing.RootOf(string(uid)), "guest "+strings.ToLower(string(report.Phase)), heard.at.Time,
		attribute.String("k8s.namespace.name", name.Namespace), attribute.String("hyperfleet.object.name", name.Name),
		attribute.String("hyperfleet.reason", heard.reason))

	if heard.onRecord(&claim) {
		return nil // it is repeated
	}

	heard.urgent = h.mustBeOnRecord(ctx, &claim, report.Phase)

	if noted, ok := h.Inbox.put(name, uid, heard); ok {
		if !heard.urgent {
			return nil
		}

		if done, err := h.awaitRecord(ctx, noted); done || err != nil {
			return err
		}

		heard = noted
	}

	changed, patch := heard.patch(&claim)
	if err := h.Client.Status().Patch(ctx, changed, patch); err != nil {
		return fmt.Errorf("patch report of claim %s: %w", name, err)
	}

	return nil
}

const (
	// inboxPatience is how long a machine waits for the claim's controller to write its report,
	// of the 5 s that it waits for an answer. Then it is told to come again: the report stays in
	// the inbox meanwhile.
	inboxPatience = 3 * time.Second
	// inboxStuck is how old a report is that is written here all the same: the controller can't
	// get past a pass over the claim. A machine that ends repeats its report for 15 s.
	inboxStuck = 8 * time.Second
)

// awaitRecord waits until the claim's controller has written a report of the inbox. It says that
// it has not where the report is to be written here: there is no such controller any more, or it
// has been waited for long enough. A write beside the controller's has its next one refused.
func (h *Handler) awaitRecord(ctx context.Context, noted note) (bool, error) {
	waiting, cancel := context.WithTimeout(ctx, inboxPatience)
	defer cancel()

	select {
	case <-noted.read:
		return true, nil
	case <-waiting.Done():
	}

	if h.Inbox.isOpen() && h.Clock.Since(noted.at.Time) < inboxStuck {
		return false, errNotYet
	}

	return false, nil
}

// errNotYet says that a report is heard and not on record yet.
var errNotYet = errors.New("the report is not on record yet")

// keepLog keeps the log of a last report, and tells whether it is kept. It comes before the report's
// word, which ends the claim; and that a log can't be kept is no reason not to hear of the machine's
// end.
func (h *Handler) keepLog(ctx context.Context, claim *v1alpha1.MachineClaim, report guest.Report) bool {
	if h.Logs == nil || !report.Phase.Last() || report.Log == "" {
		return false
	}

	// It is kept once: what a machine says after its end is no news.
	info := claim.Status.BootstrapInfo
	if info != nil && guest.Phase(info.GuestPhase).Last() || h.Inbox.hasLog(claim.UID) {
		return true
	}

	if err := h.Logs.Keep(ctx, claim, report.Log); err != nil {
		log.FromContext(ctx).Error(err, "log of machine was not kept", "namespace", claim.Namespace, "claim", claim.Name)

		return false
	}

	return true
}

// errLater says that the machine's own claim is gone.
var errLater = errors.New("it is a later claim of the same name")

// trim keeps a message within the field's bound, on a rune's edge.
func trim(message string, limit int) string {
	message = strings.ToValidUTF8(message, "?")
	for len(message) > limit {
		_, size := utf8.DecodeLastRuneInString(message[:limit+1])
		message = message[:limit+1-size]
	}

	return message
}
