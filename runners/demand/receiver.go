// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/dustin/go-humanize/english"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/workload"
)

// Pattern is the route of the Receiver. The platform is a workload type or the short name of a
// workload type, such as github.
const Pattern = "/webhooks/{platform}"

const (
	// DefaultMaxBody limits the size of a webhook's body. GitHub sends up to 25 MiB; a workflow_job
	// event has about 20 KiB.
	DefaultMaxBody = 1 << 20
	// maxJSONValues limits the number of JSON values in a webhook's body, because decoding needs
	// memory for each value. A job event has a few hundred.
	maxJSONValues = 20000
	// DefaultParallel limits the verified webhooks that are recorded at the same time. The Receiver
	// reads and verifies up to four times as many bodies at the same time, and up to half of these
	// from one address. This limits the memory for bodies.
	DefaultParallel = 32

	// readersPerSlot is how many bodies may be read for each webhook that may be recorded.
	readersPerSlot = 4
	// readTimeout is how long the read of a body may take. Senders have the whole body ready.
	readTimeout = 2 * time.Second

	// receiveTimeout is below the 10 seconds that GitHub waits for a response.
	receiveTimeout = 8 * time.Second
	retryAfter     = 10 * time.Second
)

// ReceiverConfig configures a Receiver.
type ReceiverConfig struct {
	// Client reads pools and templates, and reads and writes jobs. It may read from a cache.
	Client client.Client
	// Live reads from the API server, not from a cache. Default: Client.
	Live      client.Reader
	Secrets   SecretReader
	Platforms Platforms
	// MaxBody limits a webhook's body, in bytes. Default: DefaultMaxBody.
	MaxBody int64
	// Parallel limits the webhooks that are recorded at the same time. Default: DefaultParallel.
	Parallel int
	// Clock is the source of the current time. Default: the real clock.
	Clock clock.Clock
	// Metrics may be nil.
	Metrics *Metrics
	// Log logs the causes that responses do not contain. Default: none.
	Log *slog.Logger
}

// Receiver is the HTTP handler for the webhooks of CI platforms. Its responses are:
//
//	202  the job is in the ledger
//	204  the signature is valid and the webhook names no job that machines here could run
//	400  the body is not in the platform's format
//	401  the signature is missing, or no pool's secret verifies it
//	404  the platform is unknown, or the signature is valid and no pool has the webhook's scope
//	405  the method is not POST
//	413  the body is too large
//	415  the Content-Type is not JSON
//	503  the webhook was not read or recorded in time, and the platform must deliver it again
//
// If a webhook has no valid signature, the Receiver reads only its repository or organization, to
// choose the secrets for the verification. An unverified webhook never takes one of the slots in
// which verified webhooks are recorded.
//
// Response bodies are JSON with the fields error and fix. A caller without a valid signature gets
// the same response whether or not a pool exists. A Receiver is safe for concurrent use.
type Receiver struct {
	config  ReceiverConfig
	inbox   *inbox
	secrets *secretCache
	readers *readLimiter
	slots   chan struct{}
}

// NewReceiver returns a Receiver and fills in the defaults of its configuration.
func NewReceiver(config ReceiverConfig) *Receiver {
	if config.Live == nil {
		config.Live = config.Client
	}

	if config.MaxBody <= 0 {
		config.MaxBody = DefaultMaxBody
	}

	if config.Parallel <= 0 {
		config.Parallel = DefaultParallel
	}

	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}

	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}

	ledger := &Ledger{Client: config.Client, Live: config.Live, Platforms: config.Platforms}

	return &Receiver{
		config:  config,
		inbox:   newInbox(ledger, config.Clock),
		secrets: &secretCache{reader: config.Secrets, clock: config.Clock},
		readers: newReadLimiter(readersPerSlot * config.Parallel),
		slots:   make(chan struct{}, config.Parallel),
	}
}

// webhookResponse is an HTTP response: a status code, and for errors what is wrong and the fix.
type webhookResponse struct {
	status int
	// result is the value of the metric label result.
	result string
	// Error and Fix are the fields of the JSON body.
	Error string `json:"error"`
	Fix   string `json:"fix"`
	// cause is logged and is not part of the response.
	cause error
}

func newIgnoredResponse() webhookResponse {
	return webhookResponse{status: http.StatusNoContent, result: "ignored"}
}

func newUnavailableResponse(cause error) webhookResponse {
	return webhookResponse{
		status: http.StatusServiceUnavailable, result: "unavailable", cause: cause,
		Error: "the webhook was not recorded in time",
		Fix:   "deliver it again after the delay in Retry-After",
	}
}

func newMalformedResponse(cause error) webhookResponse {
	return webhookResponse{
		status: http.StatusBadRequest, result: "malformed", cause: cause,
		Error: cause.Error(), Fix: "send the platform's body unchanged, as application/json",
	}
}

// ServeHTTP handles one webhook.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	start := r.config.Clock.Now()
	platform, parser := r.findParser(req.PathValue("platform"))

	ctx, cancel := context.WithTimeout(req.Context(), receiveTimeout)
	defer cancel()

	response := r.handle(ctx, w, req, platform, parser)
	r.config.Metrics.observeWebhook(platform, response.result, r.config.Clock.Since(start))
	r.logResponse(req, platform, response)
	writeResponse(w, response)
}

const unknownPlatform = "unknown"

// listSlugs returns the sorted short names of the platforms, which their webhook URLs end with.
func (r *Receiver) listSlugs() []string {
	var out []string
	for _, platform := range r.config.Platforms {
		out = append(out, platform.Traits().Slug)
	}

	slices.Sort(out)

	return out
}

// findParser returns the platform whose workload type or short name is in the URL, and its parser. The parser is nil if the
// platform is unknown.
func (r *Receiver) findParser(name string) (platform string, parser workload.WebhookParser) {
	if platform, ok := r.config.Platforms[name]; ok {
		return name, platform
	}

	for kind, platform := range r.config.Platforms {
		if platform.Traits().Slug == name {
			return kind, platform
		}
	}

	return unknownPlatform, nil
}

// handle checks everything that needs no body, reads and verifies the webhook, waits for a free
// slot, and writes the job into the ledger of every namespace that has one of the pools.
func (r *Receiver) handle(
	ctx context.Context, w http.ResponseWriter, req *http.Request, platform string, parser workload.WebhookParser,
) webhookResponse {
	switch media, _, _ := mime.ParseMediaType(req.Header.Get("Content-Type")); {
	case parser == nil:
		return webhookResponse{
			status: http.StatusNotFound, result: "unknownPlatform",
			Error: "the CI platform in the URL is unknown", Fix: "use /webhooks/" + english.WordSeries(r.listSlugs(), "or"),
		}
	case req.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)

		return webhookResponse{
			status: http.StatusMethodNotAllowed, result: "method",
			Error: "the method is not POST", Fix: "send the webhook with POST, as the platform does",
		}
	case media != "application/json":
		return webhookResponse{
			status: http.StatusUnsupportedMediaType, result: "mediaType",
			Error: "the webhook's Content-Type is not application/json",
			Fix:   "choose the content type application/json in the webhook's settings at the platform",
		}
	case req.ContentLength > r.config.MaxBody:
		return r.newTooLargeResponse()
	}

	job, pools, rejection := r.readWebhook(ctx, w, req, platform, parser)
	if rejection != nil {
		return *rejection
	}

	ctx, cancel := withEndGrace(ctx, req)
	defer cancel()

	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		return newUnavailableResponse(ctx.Err())
	}

	if err := r.inbox.recordAll(ctx, job, listEnterprises(pools)); err != nil {
		return newUnavailableResponse(err)
	}

	return webhookResponse{status: http.StatusAccepted, result: "accepted"}
}

// withEndGrace returns a context with the deadline of ctx, in which a verified job can be recorded after the end of the request.
// When the operator ends, all requests end, and most platforms deliver a webhook only once.
func withEndGrace(ctx context.Context, req *http.Request) (context.Context, context.CancelFunc) {
	deadline, _ := ctx.Deadline() // ServeHTTP has set it
	graced, cancelGrace := retry.WithGrace(req.Context(), retry.EndGrace)
	bounded, cancel := context.WithDeadline(graced, deadline)

	return bounded, func() {
		cancel()
		cancelGrace()
	}
}

// readWebhook reads and verifies a webhook. It returns the webhook's job and the pools whose secret
// verifies the signature.
func (r *Receiver) readWebhook(
	ctx context.Context, w http.ResponseWriter, req *http.Request, platform string, parser workload.WebhookParser,
) (workload.Job, []webhookPool, *webhookResponse) {
	connection := http.NewResponseController(w)

	slot, err := r.readers.acquire(ctx, clientAddress(req), func() { _ = connection.SetReadDeadline(time.Now()) })
	if err != nil {
		out := newUnavailableResponse(err)

		return workload.Job{}, nil, &out
	}
	defer slot.release()

	body, rejection := r.readBody(ctx, w, req, slot)
	if rejection != nil {
		return workload.Job{}, nil, rejection
	}

	if err := bounds.CheckJSON(body, maxJSONValues); err != nil {
		return workload.Job{}, nil, &webhookResponse{
			status: http.StatusRequestEntityTooLarge, result: "tooLarge", cause: err,
			Error: "the webhook's body is " + err.Error(), Fix: "send workflow_job events only",
		}
	}

	return r.verifyAndParse(ctx, req.Header, body, platform, parser)
}

// verifyAndParse verifies a webhook. It returns the webhook's job and the pools whose secret
// verifies the signature, or the response to a webhook that is not accepted.
func (r *Receiver) verifyAndParse(
	ctx context.Context, header http.Header, body []byte, platform string, parser workload.WebhookParser,
) (signedJob workload.Job, trusted []webhookPool, refusal *webhookResponse) {
	refuseWith := func(out webhookResponse) (workload.Job, []webhookPool, *webhookResponse) {
		return workload.Job{}, nil, &out
	}

	scope, err := parser.ParseScope(header, body)
	if err != nil {
		return refuseWith(newMalformedResponse(err))
	}

	pools, err := r.listWebhookPools(ctx, platform)
	if err != nil {
		return refuseWith(newUnavailableResponse(err))
	}

	covering := slices.DeleteFunc(slices.Clone(pools), func(pool webhookPool) bool {
		return !pool.hasScopeOf(pool.withEnterprise(newScopeJob(scope, platform)))
	})
	verify := func(secret []byte) error { return parser.Verify(header, body, secret) }

	trusted, err = r.findTrustedPools(ctx, covering, verify)
	if err != nil {
		return refuseWith(newUnavailableResponse(err))
	}

	if len(trusted) == 0 {
		return refuseWith(r.rejectUnverified(ctx, header, body, pools, verify, parser))
	}

	job, namesJob, err := parser.ParseJob(header, body)
	canAnyRun := func() bool {
		return slices.ContainsFunc(trusted, func(pool webhookPool) bool { return pool.canRun(pool.withEnterprise(job)) })
	}

	switch {
	case err != nil:
		return refuseWith(newMalformedResponse(err))
	case !namesJob || r.config.Platforms.isHosted(job) && !canAnyRun():
		return refuseWith(newIgnoredResponse())
	}

	return job, trusted, nil
}

func (r *Receiver) newTooLargeResponse() webhookResponse {
	return webhookResponse{
		status: http.StatusRequestEntityTooLarge, result: "tooLarge",
		Error: "the webhook's body is larger than " + strconv.FormatInt(r.config.MaxBody, 10) + " bytes",
		Fix:   "send workflow_job events only, or raise webhooks.maxBodyBytes in the operator's configuration",
	}
}

// readBody reads the whole body. The deadline readTimeout keeps a slow caller from holding its
// slot.
func (r *Receiver) readBody(
	ctx context.Context, w http.ResponseWriter, req *http.Request, slot *readSlot,
) ([]byte, *webhookResponse) {
	// A test's ResponseWriter may have no deadlines; the error is ignored. Real connections have
	// deadlines.
	connection := http.NewResponseController(w)
	_ = connection.SetReadDeadline(time.Now().Add(readTimeout))

	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, r.config.MaxBody))
	slot.markRead()

	if _, isTooLarge := errors.AsType[*http.MaxBytesError](err); isTooLarge {
		out := r.newTooLargeResponse()

		return nil, &out
	}

	if errors.Is(err, os.ErrDeadlineExceeded) {
		out := newUnavailableResponse(err)
		out.Error = "the webhook's body did not arrive in time"

		return nil, &out
	}

	if err != nil {
		return nil, &webhookResponse{
			status: http.StatusBadRequest, result: "cutOff", cause: err,
			Error: "the webhook's body ended early", Fix: "deliver the webhook again",
		}
	}

	// The server continues to read in order to notice a closed connection. With the body's deadline
	// still set, the server would take each connection for closed.
	if deadline, ok := ctx.Deadline(); ok {
		_ = connection.SetReadDeadline(deadline)
	}

	return body, nil
}

func (r *Receiver) logResponse(req *http.Request, platform string, response webhookResponse) {
	level := slog.LevelDebug

	switch {
	case response.status >= http.StatusInternalServerError:
		level = slog.LevelError
	case response.status >= http.StatusBadRequest:
		level = slog.LevelWarn
	}

	attrs := []slog.Attr{
		slog.String("platform", platform), slog.String("result", response.result), slog.Int("status", response.status),
		slog.String("delivery", req.Header.Get("X-Github-Delivery")), slog.String("remote", req.RemoteAddr),
	}
	if response.cause != nil {
		attrs = append(attrs, slog.String("cause", response.cause.Error()))
	}

	r.config.Log.LogAttrs(req.Context(), level, "webhook handled", attrs...)
}

func writeResponse(w http.ResponseWriter, response webhookResponse) {
	if response.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", strconv.Itoa(int(retryAfter/time.Second)))
	}

	if response.Error == "" {
		w.WriteHeader(response.status)

		return
	}

	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(response.status)
	// The error is ignored, because the caller may have closed the connection.
	_ = json.NewEncoder(w).Encode(response) //nolint:errchkjson // two strings always encode
}
