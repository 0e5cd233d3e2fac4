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

	"github.com/hyperfleet/hyperfleet/kit/inputbound"
	"github.com/hyperfleet/hyperfleet/workload"
)

// Pattern is the route of the Receiver. The platform is a workload type, or the short
// name of one: github.
const Pattern = "/webhooks/{platform}"

const (
	// DefaultMaxBody bounds a webhook's body. GitHub sends up to 25 MiB; a workflow_job
	// has some 20 KiB.
	DefaultMaxBody = 1 << 20
	// maxValues bounds the values of a webhook's body: reading it takes some memory for each.
	// One of a job has a few hundred.
	maxValues = 20000
	// DefaultParallel bounds the verified webhooks that are recorded at a time. Four times
	// as many bodies are read and verified at a time, which bounds their memory, and half
	// of those from one address.
	DefaultParallel = 32

	// readersPerSlot is how many bodies may be read for each webhook that is recorded.
	readersPerSlot = 4
	// readTimeout is how long a body may take: the sender has it at hand.
	readTimeout = 2 * time.Second

	// receiveTimeout is within what GitHub waits for an answer: 10 seconds.
	receiveTimeout = 8 * time.Second
	retryAfter     = 10 * time.Second
)

// ReceiverConfig is what a Receiver needs.
type ReceiverConfig struct {
	// Client reads pools and templates, and reads and writes jobs. Its reads may come from
	// a cache.
	Client client.Client
	// Live reads from the API server itself. Default: Client.
	Live      client.Reader
	Secrets   SecretReader
	Platforms Platforms
	// MaxBody in bytes. Default: DefaultMaxBody.
	MaxBody int64
	// Parallel webhooks. Default: DefaultParallel.
	Parallel int
	// Clock tells the time. Default: the real clock.
	Clock clock.Clock
	// Metrics may be nil.
	Metrics *Metrics
	// Log says what callers are not told. Default: none.
	Log *slog.Logger
}

// Receiver answers the webhooks of CI platforms:
//
//	202  the job is in the ledger
//	204  the webhook is genuine and speaks of no job that machines here could take
//	400  the body is not what the platform sends
//	401  the signature is missing or is nobody's
//	404  the platform is unknown, or the webhook is genuine and no pool has its scope
//	405  it is no POST
//	413  the body is too large
//	415  the body is not JSON by its content type
//	503  the webhook could not be read or recorded in time: deliver it again
//
// Of a webhook without a right signature only its repository or organisation is read, to
// choose the secrets that it is verified with. Such webhooks hold none of the places of
// those that are recorded.
//
// Answers are JSON with the fields error and fix. A caller without a right signature is
// told the same whether pools exist or not. It is safe for concurrent use.
type Receiver struct {
	config  ReceiverConfig
	inbox   *inbox
	secrets *secretCache
	readers *turns
	slots   chan struct{}
}

// NewReceiver makes a Receiver.
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

	return &Receiver{
		config:  config,
		inbox:   newInbox(&Ledger{Client: config.Client, Live: config.Live, Platforms: config.Platforms}, config.Clock),
		secrets: &secretCache{reader: config.Secrets, clock: config.Clock},
		readers: newTurns(readersPerSlot * config.Parallel),
		slots:   make(chan struct{}, config.Parallel),
	}
}

// problem is an answer: a status, and for people what is wrong and what to do about it.
type problem struct {
	status int
	// result is the word in the metrics.
	result string
	// Error and Fix are the body.
	Error string `json:"error"`
	Fix   string `json:"fix"`
	// cause is for the log.
	cause error
}

func accepted() problem { return problem{status: http.StatusAccepted, result: "accepted"} }

func ignored() problem { return problem{status: http.StatusNoContent, result: "ignored"} }

func unavailable(cause error) problem {
	return problem{
		status: http.StatusServiceUnavailable, result: "unavailable", cause: cause,
		Error: "the webhook could not be recorded in time",
		Fix:   "deliver it again after the time in Retry-After",
	}
}

func malformed(cause error) problem {
	return problem{
		status: http.StatusBadRequest, result: "malformed", cause: cause,
		Error: cause.Error(), Fix: "send what the platform sends, unchanged, as application/json",
	}
}

// ServeHTTP answers one webhook.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	begun := r.config.Clock.Now()
	platform, parser := r.parser(req.PathValue("platform"))

	ctx, cancel := context.WithTimeout(req.Context(), receiveTimeout)
	defer cancel()

	answer := r.answer(ctx, w, req, platform, parser)
	r.config.Metrics.webhook(platform, answer.result, r.config.Clock.Since(begun))
	r.log(req, platform, answer)
	write(w, answer)
}

const unknownPlatform = "unknown"

// slugs are the names by which platforms send.
func (r *Receiver) slugs() []string {
	var out []string
	for _, platform := range r.config.Platforms {
		out = append(out, platform.Traits().Slug)
	}

	slices.Sort(out)

	return out
}

func (r *Receiver) parser(name string) (string, workload.WebhookParser) {
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

// answer checks what can be checked without the body, then waits for its turn.
func (r *Receiver) answer(
	ctx context.Context, w http.ResponseWriter, req *http.Request, platform string, parser workload.WebhookParser,
) problem {
	switch media, _, _ := mime.ParseMediaType(req.Header.Get("Content-Type")); {
	case parser == nil:
		return problem{
			status: http.StatusNotFound, result: "unknownPlatform",
			Error: "there is no such CI platform here", Fix: "use /webhooks/" + english.WordSeries(r.slugs(), "or"),
		}
	case req.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)

		return problem{
			status: http.StatusMethodNotAllowed, result: "method",
			Error: "webhooks are sent with POST", Fix: "let the platform send them",
		}
	case media != "application/json":
		return problem{
			status: http.StatusUnsupportedMediaType, result: "mediaType",
			Error: "the webhook is not JSON by its Content-Type",
			Fix:   "choose the content type application/json in the webhook's settings at the platform",
		}
	case req.ContentLength > r.config.MaxBody:
		return r.tooLarge()
	}

	job, pools, refused := r.genuine(ctx, w, req, platform, parser)
	if refused != nil {
		return *refused
	}

	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		return unavailable(ctx.Err())
	}

	return r.record(ctx, job, pools)
}

// genuine reads a webhook and gives its job, and the pools whose secret it was signed with.
func (r *Receiver) genuine(
	ctx context.Context, w http.ResponseWriter, req *http.Request, platform string, parser workload.WebhookParser,
) (workload.Job, []listener, *problem) {
	connection := http.NewResponseController(w)

	turn, err := r.readers.take(ctx, addressOf(req), func() { _ = connection.SetReadDeadline(time.Now()) })
	if err != nil {
		out := unavailable(err)

		return workload.Job{}, nil, &out
	}
	defer turn.done()

	body, refused := r.read(ctx, w, req, turn)
	if refused != nil {
		return workload.Job{}, nil, refused
	}

	if err := inputbound.JSON(body, maxValues); err != nil {
		return workload.Job{}, nil, &problem{
			status: http.StatusRequestEntityTooLarge, result: "tooLarge", cause: err,
			Error: "the webhook's body is " + err.Error(), Fix: "send workflow_job events only",
		}
	}

	return r.receive(ctx, req.Header, body, platform, parser)
}

func (r *Receiver) tooLarge() problem {
	return problem{
		status: http.StatusRequestEntityTooLarge, result: "tooLarge",
		Error: "the webhook's body is larger than " + strconv.FormatInt(r.config.MaxBody, 10) + " bytes",
		Fix:   "send workflow_job events only, or raise webhooks.maxBodyBytes in the operator's configuration",
	}
}

// read reads the whole body. A caller that sends slowly does not hold its place for long.
func (r *Receiver) read(ctx context.Context, w http.ResponseWriter, req *http.Request, turn *readTurn) ([]byte, *problem) {
	// Not every writer has deadlines; the ones of real connections do.
	connection := http.NewResponseController(w)
	_ = connection.SetReadDeadline(time.Now().Add(readTimeout))

	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, r.config.MaxBody))
	turn.read()

	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		out := r.tooLarge()

		return nil, &out
	}

	if errors.Is(err, os.ErrDeadlineExceeded) {
		out := unavailable(err)
		out.Error = "the webhook's body did not come in time"

		return nil, &out
	}

	if err != nil {
		return nil, &problem{
			status: http.StatusBadRequest, result: "cutOff", cause: err,
			Error: "the webhook's body ended early", Fix: "deliver it again",
		}
	}

	// The server goes on reading to notice that a caller has gone: by the deadline of the
	// body each would seem to have.
	if deadline, ok := ctx.Deadline(); ok {
		_ = connection.SetReadDeadline(deadline)
	}

	return body, nil
}

func (r *Receiver) log(req *http.Request, platform string, answer problem) {
	level := slog.LevelDebug

	switch {
	case answer.status >= http.StatusInternalServerError:
		level = slog.LevelError
	case answer.status >= http.StatusBadRequest:
		level = slog.LevelWarn
	}

	attrs := []slog.Attr{
		slog.String("platform", platform), slog.String("result", answer.result), slog.Int("status", answer.status),
		slog.String("delivery", req.Header.Get("X-Github-Delivery")), slog.String("remote", req.RemoteAddr),
	}
	if answer.cause != nil {
		attrs = append(attrs, slog.String("cause", answer.cause.Error()))
	}

	r.config.Log.LogAttrs(req.Context(), level, "webhook answered", attrs...)
}

func write(w http.ResponseWriter, answer problem) {
	if answer.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", strconv.Itoa(int(retryAfter/time.Second)))
	}

	if answer.Error == "" {
		w.WriteHeader(answer.status)

		return
	}

	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(answer.status)
	// The caller may be gone; there is nobody else to tell.
	_ = json.NewEncoder(w).Encode(answer) //nolint:errchkjson // two strings always encode
}
