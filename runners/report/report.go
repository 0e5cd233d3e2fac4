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
	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/kit/tracing"
	"github.com/hyperfleet/hyperfleet/runners/guestapi"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
)

const (
	// Pattern is the route that Handler serves.
	Pattern = "POST /machines/{namespace}/{name}/{uid}/report"

	// maxBody limits a report without its log, in bytes. maxLogBody limits the log as JSON, in
	// which one byte of the log may take six.
	maxBody    = 8 << 10
	maxLogBody = 6*guest.MaxLog + 2
	maxMessage = 1024
	maxResult  = 64
	maxVersion = 32
	timeout    = 10 * time.Second

	// maxLogBytes limits the size of all reports with logs that are handled at the same time.
	// logWaitTimeout is how long a request waits for free space, and logReadTimeout is how long its
	// body may then take to arrive.
	maxLogBytes    = 8 << 20
	logWaitTimeout = 3 * time.Second
	logReadTimeout = 2 * time.Second

	// burst is how many reports a machine may send at once: one for each phase, and some repeats.
	burst = 16
)

// phases returns the phases that a machine may report.
func phases() []guest.Phase {
	return []guest.Phase{
		guest.PhaseStarted, guest.PhaseAttesting, guest.PhaseAttested, guest.PhaseDownloading, guest.PhaseConfiguring,
		guest.PhaseListening, guest.PhaseRunning, guest.PhaseFinished, guest.PhaseFailed,
	}
}

// Handler receives reports and writes them into the status of the machine's claim. It runs on every
// replica, with or without leadership.
type Handler struct {
	// Client reads claims and writes their status.
	Client client.Client
	// Inbox passes reports to the claims' controller. If it is nil, the Handler writes them itself.
	Inbox *Inbox
	// Logs stores the log in the last report of a machine. If it is nil, the log is dropped.
	Logs *Logs
	// Key signs the machines' tokens. It must stay the same across restarts.
	Key []byte
	// Clock gives the time of a report, because a machine's own clock may be wrong.
	Clock clock.PassiveClock

	once     sync.Once
	limits   guestapi.Limits
	logSpace *semaphore.Weighted
}

// ServeHTTP handles one report.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	namespace, name, uid := r.PathValue("namespace"), r.PathValue("name"), types.UID(r.PathValue("uid"))

	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || !hmac.Equal([]byte(token), []byte(vmspec.ReportToken(h.Key, namespace, name, uid))) {
		http.Error(w, "the token is missing or is not valid for this machine", http.StatusUnauthorized)

		return
	}

	h.once.Do(func() {
		h.limits.Burst, h.limits.PerMachineOnly = burst, true
		h.logSpace = semaphore.NewWeighted(maxLogBytes)
	})

	if rejection := h.limits.CheckRate(uid, h.Clock.Now()); rejection != nil {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(rejection.RetryAfter.Seconds()))))
		http.Error(w, rejection.Message, rejection.Status)

		return
	}

	release, ok := h.acquireLogSpace(w, r)
	if !ok {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "too many machines send their logs at the same time: retry later", http.StatusServiceUnavailable)

		return
	}
	defer release()

	report, status, message := readReport(w, r)
	if message != "" {
		http.Error(w, message, status)

		return
	}

	// A complete report is written even if the machine disconnects before the response or the operator ends, because
	// the machine powers off and no other source has its log.
	graced, cancelGrace := retry.WithGrace(r.Context(), retry.EndGrace)
	defer cancelGrace()

	ctx, cancel := context.WithTimeout(graced, timeout)
	defer cancel()

	h.writeResponse(w, r, h.writeReport(ctx, types.NamespacedName{Namespace: namespace, Name: name}, uid, report, release))
}

// acquireLogSpace waits until there is space for a report with a log. The returned function
// releases the space; only its first call has an effect. A report without a log is small and does
// not wait. A read deadline stops a machine that sends its log too slowly. acquireLogSpace returns
// false if there is no space within logWaitTimeout.
func (h *Handler) acquireLogSpace(w http.ResponseWriter, r *http.Request) (release func(), ok bool) {
	size := r.ContentLength
	if size < 0 || size > maxBody+maxLogBody {
		size = maxBody + maxLogBody
	}

	if size <= maxBody {
		return func() {}, true
	}

	ctx, cancel := context.WithTimeout(r.Context(), logWaitTimeout)
	defer cancel()

	if h.logSpace.Acquire(ctx, size) != nil {
		return nil, false
	}

	// The next request on the connection gets a deadline of its own.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(logReadTimeout)) // a test's ResponseWriter has no deadline

	return sync.OnceFunc(func() { h.logSpace.Release(size) }), true
}

// readReport reads and validates a report. If the report is invalid, it returns the HTTP status and
// the message of the response.
func readReport(w http.ResponseWriter, r *http.Request) (decoded guest.Report, httpStatus int, message string) {
	tooLarge := fmt.Sprintf("a report has at most %d bytes, plus at most %d bytes of log", maxBody, maxLogBody)

	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody+maxLogBody))
	if err != nil {
		return guest.Report{}, http.StatusRequestEntityTooLarge, tooLarge
	}

	var report struct {
		guest.Report

		Log json.RawMessage `json:"log"`
	}
	if err := json.Unmarshal(body, &report); err != nil || report.Phase == "" {
		return guest.Report{}, http.StatusBadRequest, "the report must be JSON with a phase"
	}

	if !slices.Contains(phases(), report.Phase) {
		return guest.Report{}, http.StatusBadRequest, fmt.Sprintf("the phase of the report must be one of %v", phases())
	}

	if len(body)-len(report.Log) > maxBody {
		return guest.Report{}, http.StatusRequestEntityTooLarge, tooLarge
	}

	if len(report.Log) > 0 && json.Unmarshal(report.Log, &report.Report.Log) != nil {
		return guest.Report{}, http.StatusBadRequest, "the log of the report must be a string"
	}

	return report.Report, 0, ""
}

func (h *Handler) writeResponse(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case err == nil:
		w.WriteHeader(http.StatusNoContent)
	case apierrors.IsNotFound(err), errors.Is(err, errClaimReplaced):
		http.Error(w, "the MachineClaim is deleted", http.StatusGone)
	case errors.Is(err, errNotRecorded):
		w.Header().Set("Retry-After", "1")
		http.Error(w, errNotRecorded.Error()+": retry later", http.StatusServiceUnavailable)
	default:
		log.FromContext(r.Context()).Error(err, "write report", "path", r.URL.Path)
		http.Error(w, "the report was not written: retry later", http.StatusServiceUnavailable)
	}
}

// writeReport writes the report into the claim's status, directly or through the inbox. It returns
// errClaimReplaced if a newer claim has the same name. It calls release as soon as the log is
// stored.
func (h *Handler) writeReport(
	ctx context.Context, name types.NamespacedName, uid types.UID, report guest.Report, release func(),
) error {
	var claim v1alpha1.MachineClaim
	if err := h.Client.Get(ctx, name, &claim); err != nil {
		return fmt.Errorf("get claim %s: %w", name, err)
	}

	if claim.UID != uid {
		return fmt.Errorf("get claim %s: %w", name, errClaimReplaced)
	}

	isLogKept := h.keepLog(ctx, &claim, report)
	report.Log = ""

	release()

	message := report.Message
	if report.Reason != "" {
		message = strings.TrimSuffix(report.Reason+": "+report.Message, ": ")
	}

	received := reportRecord{
		phase: report.Phase, message: truncate(message, maxMessage), reason: truncate(report.Reason, maxResult),
		result: truncate(report.Result, maxResult), runnerVersion: truncate(report.RunnerVersion, maxVersion),
		reportedAt: metav1.NewMicroTime(h.Clock.Now()), isLogKept: isLogKept,
	}
	tracing.EmitInstant(tracing.RootForUID(string(uid)), "guest "+strings.ToLower(string(report.Phase)), received.reportedAt.Time,
		attribute.String("k8s.namespace.name", name.Namespace), attribute.String("hyperfleet.object.name", name.Name),
		attribute.String("hyperfleet.reason", received.reason))

	if received.isRecorded(&claim) {
		return nil // the machine repeats the report
	}

	if tellsJobState(&claim, report.Phase) {
		received.tellsJobState = true

		pending, ok := h.Inbox.put(name, uid, received)
		if ok && !pending.isUrgent && (h.awaitJobState(ctx, &claim, report.Phase) || pending.isSaved()) {
			return nil
		}

		received.isUrgent = true
	} else {
		received.isUrgent = h.needsRecord(ctx, &claim, report)
	}

	if pending, ok := h.Inbox.put(name, uid, received); ok {
		if !received.isUrgent {
			return nil
		}

		if isRecorded, err := h.awaitRecord(ctx, pending); isRecorded || err != nil {
			return err
		}

		received = pending
	}

	changed, patch := received.newPatch(&claim)
	if err := h.Client.Status().Patch(ctx, changed, patch); err != nil {
		return fmt.Errorf("patch report of claim %s: %w", name, err)
	}

	return nil
}

const (
	// recordTimeout is how long a request waits until the claim's controller has written the report. With jobTimeout it is
	// less than the 5 s for which a machine waits for a response. After it the machine must retry; the report stays
	// in the inbox.
	recordTimeout = 2 * time.Second
	// maxRecordDelay is the age at which the Handler writes a report itself, because the controller
	// cannot finish a reconcile of the claim. A machine that ends repeats its report for 15 s.
	maxRecordDelay = 8 * time.Second
)

// awaitRecord waits until the claim's controller has written a report of the inbox. It returns
// false if the Handler must write the report itself, because the controller no longer runs or the
// report is older than maxRecordDelay. A direct write makes the controller's next write fail with a
// conflict. It returns errNotRecorded if the machine must retry.
func (h *Handler) awaitRecord(ctx context.Context, pending reportRecord) (isRecorded bool, err error) {
	waiting, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()

	select {
	case <-pending.saved:
		return true, nil
	case <-waiting.Done():
	}

	if h.Inbox.isOpen() && h.Clock.Since(pending.reportedAt.Time) < maxRecordDelay {
		return false, errNotRecorded
	}

	return false, nil
}

// errNotRecorded means that the report is received and not written to the status yet.
var errNotRecorded = errors.New("the report is not written yet")

// keepLog stores the log of a last report, and returns whether it is stored. It runs before the
// report itself is written, because that write ends the claim. A failure is only logged, because
// the report of the machine's end is needed without its log, too.
func (h *Handler) keepLog(ctx context.Context, claim *v1alpha1.MachineClaim, report guest.Report) bool {
	if h.Logs == nil || !report.Phase.Last() || report.Log == "" {
		return false
	}

	// The log is stored once, because later reports of an ended machine have nothing new.
	info := claim.Status.BootstrapInfo
	if info != nil && guest.Phase(info.GuestPhase).Last() || h.Inbox.hasLog(claim.UID) {
		return true
	}

	if err := h.Logs.Keep(ctx, claim, report.Log); err != nil {
		log.FromContext(ctx).Error(err, "store log of machine", "namespace", claim.Namespace, "claim", claim.Name)

		return false
	}

	return true
}

// errClaimReplaced means that the machine's own claim is deleted.
var errClaimReplaced = errors.New("a newer claim has the same name")

// truncate cuts a message to limit bytes at a rune boundary.
func truncate(message string, limit int) string {
	message = strings.ToValidUTF8(message, "?")
	for len(message) > limit {
		_, size := utf8.DecodeLastRuneInString(message[:limit+1])
		message = message[:limit+1-size]
	}

	return message
}
