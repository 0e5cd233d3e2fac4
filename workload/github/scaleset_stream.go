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

// quietAfter is how long a poll finds nothing until all updates there were are taken to be in.
const quietAfter = 10 * time.Second

// batchType is the only type of message that is known; others have statistics at most.
const batchType = "RunnerScaleSetJobMessages"

var errSessionLost = errors.New("the session of the scale set is lost")

// handler is what Stream's caller does with jobs.
type handler func(context.Context, []workload.Job) error

// Stream listens to the set's queue. A set has one listener: while there is another, which
// may be one that died and whose session has not ended yet, it gives an error of kind
// Conflict that says so. A session that the service lost is opened again at once.
func (s *scaled) Stream(
	ctx context.Context, capacity func() int, got func(context.Context, []workload.Job) error,
) error {
	for {
		heard, err := s.session(ctx, capacity, got)

		switch {
		case ctx.Err() != nil && errors.Is(err, ctx.Err()):
			return ctx.Err()
		case ctx.Err() != nil, !heard, !errors.Is(err, errSessionLost):
			return err
		}
	}
}

// session opens a session and listens until it breaks. It tells whether it was of use.
func (s *scaled) session(ctx context.Context, capacity func() int, got handler) (bool, error) {
	at, err := s.openSession(ctx)
	if err != nil {
		return false, err
	}

	l := &listening{scaled: s, session: at, capacity: capacity, got: got}
	defer l.close(ctx)

	if err := l.begin(ctx); err != nil {
		return false, err
	}

	return l.listen(ctx)
}

// queueSession is a session as the service describes it.
type queueSession struct {
	ID         string     `json:"sessionId"`
	URL        string     `json:"messageQueueUrl"`
	Token      string     `json:"messageQueueAccessToken"`
	Statistics statistics `json:"statistics"`

	set int64
	at  *url.URL
}

// openSession opens a session. A set that is gone is made anew, once.
func (s *scaled) openSession(ctx context.Context) (queueSession, error) {
	for try := 1; ; try++ {
		set, err := s.ensure(ctx)
		if err != nil {
			return queueSession{}, err
		}

		out := queueSession{}
		asked := map[string]string{"ownerName": owner()}
		err = s.service.ask(ctx, http.MethodPost, setPath(set.ID, "sessions"), nil, asked, &out)

		switch refused := asRefusal(err); {
		case err == nil:
			out.set = set.ID

			return s.service.read(out)
		case refused.is(http.StatusNotFound, "") && try == 1:
			s.forget()
		case refused.is(http.StatusConflict, ""):
			return queueSession{}, &workload.Error{
				Kind: workload.Conflict, Reason: ReasonScaleSetInUse,
				Message: fmt.Sprintf("scale set %s has another listener%s: if nothing of yours uses the same name, "+
					"it is one that ended without a word, and GitHub lets go of it within minutes; trying again",
					s.name, s.said(refused.message)),
			}
		default:
			return queueSession{}, s.service.explain("opening a session of scale set "+s.name, err)
		}
	}
}

// owner names this listener to others.
func owner() string {
	if name, err := os.Hostname(); err == nil && name != "" {
		return name
	}

	return userAgent
}

// read checks a session: GitHub was seen to give one without a queue.
func (s *service) read(session queueSession) (queueSession, error) {
	at, err := s.serviceURL("messageQueueUrl", session.URL)
	if err != nil || session.ID == "" || session.Token == "" {
		return queueSession{}, cmpErr(err, errNoCredential)
	}

	session.at = at

	return session, nil
}

// listening is one session at work.
type listening struct {
	*scaled

	session  queueSession
	capacity func() int
	got      handler
	last     int64
	// level that came with a renewed token, not taken in yet.
	level *statistics
}

func (l *listening) close(ctx context.Context) {
	l.mu.Lock()
	l.live = false
	l.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.timeout)
	defer cancel()

	// What can't be closed ends by itself.
	_ = l.service.ask(ctx, http.MethodDelete, setPath(l.session.set, "sessions", l.session.ID), nil, nil, nil)
}

// begin takes over the session's statistics, and tells the caller that there is a session.
func (l *listening) begin(ctx context.Context) error {
	return l.update(ctx, true, func(t *tally, now time.Time) []workload.Job {
		t.begin(l.session.ID, l.session.Statistics, now)

		return t.settle(false, now)
	})
}

// update changes the tally and hands over what changed. Where that fails nothing changed:
// what was not taken comes again.
func (l *listening) update(ctx context.Context, always bool, change func(*tally, time.Time) []workload.Job) error {
	l.mu.Lock()
	next := l.known.clone()
	l.mu.Unlock()

	jobs := change(&next, l.clock.Now())

	if len(jobs) > 0 || always {
		if err := l.got(ctx, jobs); err != nil {
			return fmt.Errorf("take over %d jobs of scale set %s: %w", len(jobs), l.name, err)
		}
	}

	l.mu.Lock()
	defer l.mu.Unlock()

	l.known, l.live = &next, true

	return nil
}

// listen polls until the session breaks, and tells whether it ever had an answer.
func (l *listening) listen(ctx context.Context) (bool, error) {
	for heard := false; ; heard = true {
		message, err := l.next(ctx)
		if err != nil {
			return heard, err
		}

		if level := l.level; level != nil {
			l.level = nil
			message = cmp.Or(message, &queueMessage{Statistics: level})
		}

		if err := l.handle(ctx, message); err != nil {
			return heard, err
		}

		if err := l.acquireMore(ctx); err != nil {
			return heard, err
		}
	}
}

// queueMessage is what a poll gives.
type queueMessage struct {
	ID         int64       `json:"messageId"`
	Type       string      `json:"messageType"`
	Body       string      `json:"body"`
	Statistics *statistics `json:"statistics"`
}

// updates reads the jobs of a message. What can't be read is left out: the statistics count
// those jobs too.
func (m queueMessage) updates() []jobUpdate {
	var batch []json.RawMessage
	if m.Type != batchType || json.Unmarshal([]byte(m.Body), &batch) != nil {
		return nil
	}

	var out []jobUpdate

	for _, text := range batch {
		var n jobUpdate
		if json.Unmarshal(text, &n) == nil {
			out = append(out, n)
		}
	}

	return out
}

// next polls once; nil means that there is no message. While the poll is held, names and
// level are settled.
func (l *listening) next(ctx context.Context) (*queueMessage, error) {
	ctx, cancel := context.WithCancel(ctx)

	type answer struct {
		message *queueMessage
		err     error
	}

	answers := make(chan answer, 1)

	go func() {
		message, err := l.poll(ctx)
		answers <- answer{message, err}
	}()

	waiting, capacity := true, l.capacity()

	defer func() {
		cancel()

		if waiting {
			<-answers
		}
	}()

	for {
		timer := l.clock.NewTimer(quietAfter)

		select {
		case a := <-answers:
			timer.Stop()

			waiting = false

			return a.message, a.err
		case <-timer.C():
			if err := l.update(ctx, false, func(t *tally, now time.Time) []workload.Job { return t.settle(true, now) }); err != nil {
				return nil, err
			}

			// The service goes by the capacity that it was asked with. What this poll may
			// have been given already is not acknowledged, and comes again.
			if l.capacity() != capacity {
				return nil, nil //nolint:nilnil // no message is an answer
			}
		}
	}
}

// poll asks for the message after the last one; nil means that there is none yet.
func (l *listening) poll(ctx context.Context) (*queueMessage, error) {
	var message queueMessage

	err := l.withQueue(ctx, "asking for messages", func() call {
		at := *l.session.at
		query := at.Query()

		if l.last > 0 {
			query.Set("lastMessageId", strconv.FormatInt(l.last, 10))
		}

		at.RawQuery = query.Encode()

		header := http.Header{}
		header.Set("Accept", "application/json; api-version="+serviceAPIVersion)
		header.Set(capacityHeader, strconv.Itoa(max(0, l.capacity())))

		return call{method: http.MethodGet, url: at.String(), header: header, out: &message, limit: holdTime + l.timeout}
	})
	if err != nil || message.ID == 0 {
		return nil, err
	}

	return &message, nil
}

// withQueue makes a call with the queue's token, and renews that once if it has ended.
func (l *listening) withQueue(ctx context.Context, what string, with func() call) error {
	for try := 1; ; try++ {
		c := with()
		c.auth = "Bearer " + l.session.Token

		err := l.service.send(ctx, c)

		switch refused := asRefusal(err); {
		case err == nil:
			return nil
		case refused.is(http.StatusUnauthorized, "") && try == 1:
			if err := l.refresh(ctx); err != nil {
				return err
			}
		case refused.is(http.StatusUnauthorized, ""), refused.is(http.StatusNotFound, ""), refused.is(0, "SessionExpired"):
			return fmt.Errorf("%s of scale set %s: %w", what, l.name, errSessionLost)
		default:
			return l.service.explain(what+" of scale set "+l.name, err)
		}
	}
}

// refresh renews the session's token. The statistics that come with it are taken in when
// the poll is over.
func (l *listening) refresh(ctx context.Context) error {
	fresh := queueSession{}
	err := l.service.ask(ctx, http.MethodPatch, setPath(l.session.set, "sessions", l.session.ID), nil, nil, &fresh)

	switch refused := asRefusal(err); {
	case refused.is(http.StatusNotFound, ""), refused.is(http.StatusBadRequest, ""):
		return fmt.Errorf("renew the session of scale set %s: %w", l.name, errSessionLost)
	case err != nil:
		return l.service.explain("renewing the session of scale set "+l.name, err)
	}

	fresh.set = l.session.set

	if fresh, err = l.service.read(fresh); err == nil {
		l.session, l.level = fresh, &fresh.Statistics
	}

	return err
}

// handle acquires the jobs that a message offers, hands over what it says, and only then
// acknowledges it.
func (l *listening) handle(ctx context.Context, message *queueMessage) error {
	if message == nil {
		return nil
	}

	updates, err := l.acquire(ctx, message.updates())
	if err != nil {
		return err
	}

	err = l.update(ctx, false, func(t *tally, now time.Time) []workload.Job {
		out := t.ingest(updates, now)
		if message.Statistics != nil {
			t.observe(*message.Statistics, now)
		}

		return append(out, t.settle(false, now)...)
	})
	if err != nil || message.ID == 0 {
		return err
	}

	err = l.withQueue(ctx, "acknowledging a message", func() call {
		return call{
			method: http.MethodDelete, url: l.session.at.JoinPath(strconv.FormatInt(message.ID, 10)).String(), limit: l.timeout,
		}
	})
	if err != nil {
		return err
	}

	l.last = message.ID

	return nil
}

// room is how many more jobs can be worked on.
func (l *listening) room() (room, available int) {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.capacity() - len(l.known.open), l.known.level.Available
}

// acquire takes offered jobs for this set, as many as there is room for, and leaves out
// those that it did not get.
func (l *listening) acquire(ctx context.Context, updates []jobUpdate) ([]jobUpdate, error) {
	room, _ := l.room()
	ids, out := []int64{}, []jobUpdate{}

	for _, n := range updates {
		switch {
		case n.Kind != jobAvailable:
			out = append(out, n)
		case len(ids) < room && n.Request > 0:
			ids = append(ids, n.Request)
		}
	}

	if len(ids) == 0 {
		return out, nil
	}

	var acquired struct {
		Value []int64 `json:"value"`
	}

	err := l.withQueue(ctx, "acquiring jobs", func() call {
		return call{method: http.MethodPost, url: l.address("acquirejobs"), body: ids, out: &acquired, limit: l.timeout}
	})
	if err != nil {
		return nil, err
	}

	for _, n := range updates {
		if n.Kind == jobAvailable && slices.Contains(acquired.Value, n.Request) {
			out = append(out, n)
		}
	}

	return out, nil
}

// address of a call that is the service's, and yet is made with the queue's token.
func (l *listening) address(what string) string {
	l.service.mu.Lock()
	defer l.service.mu.Unlock()

	return address(l.service.base, setPath(l.session.set, what), nil)
}

// acquireMore takes jobs that were offered when there was no room for them: no message
// offers them again.
func (l *listening) acquireMore(ctx context.Context) error {
	if room, available := l.room(); room <= 0 || available == 0 {
		return nil
	}

	var offered struct {
		Value []jobUpdate `json:"value"`
	}

	err := l.service.ask(ctx, http.MethodGet, setPath(l.session.set, "acquirablejobs"), nil, nil, &offered)
	if err != nil {
		return l.service.explain("asking for the offered jobs of scale set "+l.name, err)
	}

	for i := range offered.Value {
		offered.Value[i].Kind = jobAvailable
	}

	updates, err := l.acquire(ctx, offered.Value)
	if err != nil {
		return err
	}

	return l.update(ctx, false, func(t *tally, now time.Time) []workload.Job {
		t.level.Available = max(0, t.level.Available-len(updates))

		return t.ingest(updates, now)
	})
}
