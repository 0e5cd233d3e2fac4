// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/hyperfleet/hyperfleet/workload"
)

// quietPeriod is how long a poll must return no message until all pending updates count as
// received.
const quietPeriod = 10 * time.Second

// Values of parameters of listener.update and tally.reconcile.
const (
	evenIfUnchanged, onlyIfChanged = true, false
	quiet, notQuiet                = true, false
)

// jobsMessageType is the only message type that contains jobs. Other messages contain at most
// statistics.
const jobsMessageType = "RunnerScaleSetJobMessages"

var errSessionLost = errors.New("the session of the scale set is lost")

// jobHandler is the function that the caller of StreamJobs passes.
type jobHandler func(context.Context, []workload.Job) error

// StreamJobs listens to the set's message queue. A set has at most one listener. If another session
// is open, the error has kind Conflict. The session can belong to a listener that stopped without
// closing it. If the service loses the session, StreamJobs opens a new session at once.
func (s *scaleSetProvider) StreamJobs(
	ctx context.Context, capacity func() int, handle func(context.Context, []workload.Job) error,
) error {
	for {
		hasReceived, err := s.runSession(ctx, capacity, handle)

		switch {
		case ctx.Err() != nil && errors.Is(err, ctx.Err()):
			return ctx.Err()
		case ctx.Err() != nil, !hasReceived, !errors.Is(err, errSessionLost):
			return err
		default:
			// The service lost a session that worked. Open a new one.
		}
	}
}

// runSession opens a session and listens until the session breaks. It reports whether the session
// received a response.
func (s *scaleSetProvider) runSession(
	ctx context.Context, capacity func() int, handle jobHandler,
) (hasReceived bool, err error) {
	opened, err := s.openSession(ctx)
	if err != nil {
		return false, err
	}

	l := &listener{scaleSetProvider: s, session: opened, capacity: capacity, onJobs: handle}
	defer l.close(ctx)

	if err := l.begin(ctx); err != nil {
		return false, err
	}

	return l.listen(ctx)
}

// queueSession is a session in the service's API.
type queueSession struct {
	ID         string     `json:"sessionId"`
	URL        string     `json:"messageQueueUrl"`
	Token      string     `json:"messageQueueAccessToken"`
	Statistics statistics `json:"statistics"`

	setID    int64
	queueURL *url.URL
}

// openSession opens a session. If the set was deleted, it creates the set again, once.
func (s *scaleSetProvider) openSession(ctx context.Context) (queueSession, error) {
	for attempt := 1; ; attempt++ {
		set, err := s.ensureSet(ctx)
		if err != nil {
			return queueSession{}, err
		}

		out := queueSession{}
		requestBody := map[string]string{"ownerName": sessionOwner()}
		err = s.service.callService(ctx, http.MethodPost, setPath(set.ID, "sessions"), nil, requestBody, &out)

		switch serviceErr := asServiceError(err); {
		case err == nil:
			out.setID = set.ID

			return s.service.validateSession(out)
		case serviceErr.hasStatus(http.StatusNotFound) && attempt == 1:
			s.forgetSet()
		case serviceErr.hasStatus(http.StatusConflict):
			return queueSession{}, &workload.Error{
				Kind: workload.Conflict, Reason: ReasonScaleSetInUse,
				Message: fmt.Sprintf("scale set %s has another listener%s: if you do not use the name elsewhere, "+
					"the listener stopped without closing its session, and GitHub closes the session within minutes; "+
					"the operator retries",
					s.name, s.quoteMessage(serviceErr.message)),
			}
		default:
			return queueSession{}, s.service.explain("open a session of scale set "+s.name, err)
		}
	}
}

// sessionOwner returns the name that other listeners see: the host name.
func sessionOwner() string {
	if name, err := os.Hostname(); err == nil && name != "" {
		return name
	}

	return userAgent
}

// validateSession checks a session and parses its queue URL, because GitHub sometimes returns a
// session without a queue.
func (s *serviceClient) validateSession(session queueSession) (queueSession, error) {
	queueURL, err := s.parseServiceURL("messageQueueUrl", session.URL)
	if err != nil || session.ID == "" || session.Token == "" {
		return queueSession{}, firstError(err, errNoCredential)
	}

	session.queueURL = queueURL

	return session, nil
}

// listener receives the messages of one session.
type listener struct {
	*scaleSetProvider

	session       queueSession
	capacity      func() int
	onJobs        jobHandler
	lastMessageID int64
	// renewedStatistics are the statistics of a renewed session that are not applied yet.
	renewedStatistics *statistics
}

// closeTimeout is the timeout of the call that closes a session. It is shorter than the operator may take to end.
const closeTimeout = 3 * time.Second

func (l *listener) close(ctx context.Context) {
	l.mu.Lock()
	l.isLive = false
	l.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(l.timeout, closeTimeout))
	defer cancel()

	// Ignore the error, because the service closes an abandoned session itself.
	_ = l.service.callService(ctx, http.MethodDelete, setPath(l.session.setID, "sessions", l.session.ID), nil, nil, nil)
}

// begin applies the session's statistics and calls the handler, even if no job has changed, so that
// the caller learns that a session is open.
func (l *listener) begin(ctx context.Context) error {
	return l.update(ctx, evenIfUnchanged, func(t *tally, now time.Time) []workload.Job {
		t.begin(l.session.ID, l.session.Statistics, now)

		return t.reconcile(notQuiet, now)
	})
}

// update changes a copy of the tally, passes the changed jobs to the handler and then stores the
// copy. If no job has changed, it calls the handler only with evenIfUnchanged. If the handler returns
// an error, the tally stays unchanged, and the service sends unacknowledged messages again.
func (l *listener) update(ctx context.Context, callHandler bool, change func(*tally, time.Time) []workload.Job) error {
	l.mu.Lock()
	next := l.jobs.clone()
	l.mu.Unlock()

	jobs := change(&next, l.clock.Now())

	if len(jobs) > 0 || callHandler {
		if err := l.onJobs(ctx, jobs); err != nil {
			return fmt.Errorf("handle %d jobs of scale set %s: %w", len(jobs), l.name, err)
		}
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	l.jobs, l.isLive = &next, true

	return nil
}

// listen polls until the session breaks, and reports whether it received a response.
func (l *listener) listen(ctx context.Context) (hasReceived bool, err error) {
	for ; ; hasReceived = true {
		message, err := l.nextMessage(ctx)
		if err != nil {
			return hasReceived, err
		}

		if renewed := l.renewedStatistics; renewed != nil {
			l.renewedStatistics = nil
			message = cmp.Or(message, &queueMessage{Statistics: renewed})
		}

		if err := l.handleMessage(ctx, message); err != nil {
			return hasReceived, err
		}

		if err := l.acquireOffered(ctx); err != nil {
			return hasReceived, err
		}
	}
}

// queueMessage is the response to a poll.
type queueMessage struct {
	ID         int64       `json:"messageId"`
	Type       string      `json:"messageType"`
	Body       string      `json:"body"`
	Statistics *statistics `json:"statistics"`
}

// updates decodes the job updates of a message. It skips invalid updates, because the statistics
// count their jobs too.
func (m queueMessage) updates() []jobUpdate {
	var batch []json.RawMessage
	if m.Type != jobsMessageType || json.Unmarshal([]byte(m.Body), &batch) != nil {
		return nil
	}

	var out []jobUpdate

	for _, text := range batch {
		var update jobUpdate
		if json.Unmarshal(text, &update) == nil {
			out = append(out, update)
		}
	}

	return out
}

// nextMessage polls once. It returns nil if there is no message. While the poll waits, it
// reconciles the jobs with the statistics after each quietPeriod.
func (l *listener) nextMessage(ctx context.Context) (*queueMessage, error) {
	ctx, cancel := context.WithCancel(ctx)

	type pollResult struct {
		message *queueMessage
		err     error
	}

	results := make(chan pollResult, 1)

	go func() {
		message, err := l.poll(ctx)
		results <- pollResult{message, err}
	}()

	isPending, capacity := true, l.capacity()

	defer func() {
		cancel()

		if isPending {
			<-results // the goroutine uses l
		}
	}()

	for {
		timer := l.clock.NewTimer(quietPeriod)

		select {
		case polled := <-results:
			timer.Stop()

			isPending = false

			return polled.message, polled.err
		case <-timer.C():
			err := l.update(ctx, onlyIfChanged, func(t *tally, now time.Time) []workload.Job {
				return t.reconcile(quiet, now)
			})
			if err != nil {
				return nil, err
			}

			// Start a new poll if the capacity has changed, because the service uses the capacity
			// of the request. A message that the canceled poll received is not acknowledged, so the
			// service sends it again.
			if l.capacity() != capacity {
				return nil, nil //nolint:nilnil // nil means that there is no message
			}
		}
	}
}

// poll requests the message after the last one. It returns nil if there is no message yet.
func (l *listener) poll(ctx context.Context) (*queueMessage, error) {
	var message queueMessage

	err := l.callQueue(ctx, "poll the messages", func() serviceCall {
		queueURL := *l.session.queueURL
		query := queueURL.Query()

		if l.lastMessageID > 0 {
			query.Set("lastMessageId", strconv.FormatInt(l.lastMessageID, 10))
		}

		queueURL.RawQuery = query.Encode()

		header := http.Header{}
		header.Set("Accept", "application/json; api-version="+serviceAPIVersion)
		header.Set(capacityHeader, strconv.Itoa(max(0, l.capacity())))

		return serviceCall{
			method: http.MethodGet, url: queueURL.String(), header: header, out: &message, timeout: pollHoldTime + l.timeout,
		}
	})
	if err != nil || message.ID == 0 {
		return nil, err
	}

	return &message, nil
}

// callQueue makes a call with the queue's token. If the token has expired, callQueue renews it and
// repeats the call once.
func (l *listener) callQueue(ctx context.Context, action string, newCall func() serviceCall) error {
	for attempt := 1; ; attempt++ {
		c := newCall()
		c.auth = "Bearer " + l.session.Token

		err := l.service.send(ctx, c)

		switch serviceErr := asServiceError(err); {
		case err == nil:
			return nil
		case serviceErr.hasStatus(http.StatusUnauthorized) && attempt == 1:
			if err := l.renewSession(ctx); err != nil {
				return err
			}
		case serviceErr.hasStatus(http.StatusUnauthorized), serviceErr.hasStatus(http.StatusNotFound),
			serviceErr.hasKind("SessionExpired"):
			return fmt.Errorf("%s of scale set %s: %w", action, l.name, errSessionLost)
		default:
			return l.service.explain(action+" of scale set "+l.name, err)
		}
	}
}

// renewSession renews the session's token. The statistics in the response are applied after the
// current poll.
func (l *listener) renewSession(ctx context.Context) error {
	renewed := queueSession{}
	err := l.service.callService(ctx, http.MethodPatch, setPath(l.session.setID, "sessions", l.session.ID), nil, nil, &renewed)

	switch serviceErr := asServiceError(err); {
	case serviceErr.hasStatus(http.StatusNotFound), serviceErr.hasStatus(http.StatusBadRequest):
		return fmt.Errorf("renew the session of scale set %s: %w", l.name, errSessionLost)
	case err != nil:
		return l.service.explain("renew the session of scale set "+l.name, err)
	}

	renewed.setID = l.session.setID

	if renewed, err = l.service.validateSession(renewed); err == nil {
		l.session, l.renewedStatistics = renewed, &renewed.Statistics
	}

	return err
}

// handleMessage acquires the jobs that a message offers, passes the changed jobs to the handler and
// then acknowledges the message.
func (l *listener) handleMessage(ctx context.Context, message *queueMessage) error {
	if message == nil {
		return nil
	}

	updates, err := l.acquireJobs(ctx, message.updates())
	if err != nil {
		return err
	}

	err = l.update(ctx, onlyIfChanged, func(t *tally, now time.Time) []workload.Job {
		out := t.applyUpdates(updates, now)
		if message.Statistics != nil {
			t.observe(*message.Statistics, now)
		}

		return append(out, t.reconcile(notQuiet, now)...)
	})
	if err != nil || message.ID == 0 {
		return err
	}

	err = l.callQueue(ctx, "acknowledge a message", func() serviceCall {
		return serviceCall{
			method: http.MethodDelete, url: l.session.queueURL.JoinPath(strconv.FormatInt(message.ID, 10)).String(), timeout: l.timeout,
		}
	})
	if err != nil {
		return err
	}

	l.lastMessageID = message.ID

	return nil
}

// freeCapacity returns how many more jobs can run.
func (l *listener) freeCapacity() int {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.capacity() - len(l.jobs.open)
}

// hasOfferedJobs reports whether the service offers jobs that no set has acquired.
func (l *listener) hasOfferedJobs() bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.jobs.statistics.Available != 0
}

// acquireJobs acquires as many offered jobs as there is free capacity. It returns the updates
// without the offers of jobs that it did not acquire.
func (l *listener) acquireJobs(ctx context.Context, updates []jobUpdate) ([]jobUpdate, error) {
	free := l.freeCapacity()
	ids, out := []int64{}, []jobUpdate{}

	for _, update := range updates {
		switch {
		case update.Kind != jobAvailable:
			out = append(out, update)
		case len(ids) < free && update.RequestID > 0:
			ids = append(ids, update.RequestID)
		}
	}

	if len(ids) == 0 {
		return out, nil
	}

	var acquired struct {
		Value []int64 `json:"value"`
	}

	err := l.callQueue(ctx, "acquire jobs", func() serviceCall {
		return serviceCall{method: http.MethodPost, url: l.buildSetURL("acquirejobs"), body: ids, out: &acquired, timeout: l.timeout}
	})
	if err != nil {
		return nil, err
	}

	for _, update := range updates {
		if update.Kind == jobAvailable && slices.Contains(acquired.Value, update.RequestID) {
			out = append(out, update)
		}
	}

	return out, nil
}

// buildSetURL returns the URL of a call of the service that needs the queue's token.
func (l *listener) buildSetURL(action string) string {
	l.service.mu.Lock()
	defer l.service.mu.Unlock()

	return buildURL(l.service.base, setPath(l.session.setID, action), nil)
}

// acquireOffered acquires jobs that were offered while there was no free capacity, because no
// message offers them again.
func (l *listener) acquireOffered(ctx context.Context) error {
	if l.freeCapacity() <= 0 || !l.hasOfferedJobs() {
		return nil
	}

	var offered struct {
		Value []jobUpdate `json:"value"`
	}

	err := l.service.callService(ctx, http.MethodGet, setPath(l.session.setID, "acquirablejobs"), nil, nil, &offered)
	if err != nil {
		return l.service.explain("list the offered jobs of scale set "+l.name, err)
	}

	for i := range offered.Value {
		offered.Value[i].Kind = jobAvailable
	}

	updates, err := l.acquireJobs(ctx, offered.Value)
	if err != nil {
		return err
	}

	return l.update(ctx, onlyIfChanged, func(t *tally, now time.Time) []workload.Job {
		t.statistics.Available = max(0, t.statistics.Available-len(updates))

		return t.applyUpdates(updates, now)
	})
}
