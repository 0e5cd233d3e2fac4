// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/libdns/libdns"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
)

// callTimeout bounds one call of a library, which may be many to the service. A call that
// failed is not made again by itself: its outcome may be unknown, so the next pass of the
// controller, which backs off, looks first.
const callTimeout = 30 * time.Second

// Client calls one DNS service: bounded in time, noted in the metrics, and with errors
// that hold no secret. It is safe for concurrent use.
type Client struct {
	service Service
	kind    string
	redact  log.Redactor
	clock   clock.Clock
	calls   *metrics.Calls

	mu       sync.Mutex
	listings map[string]*listings
}

// newClient wraps a service.
func newClient(kind string, service Service, redact log.Redactor, timer clock.Clock, calls *metrics.Calls) *Client {
	return &Client{
		service: service, kind: kind, redact: redact, clock: timer, calls: calls, listings: map[string]*listings{},
	}
}

// listings share the reading of one zone: who asks while one is under way waits for the
// next, which shows everything written before the question.
type listings struct {
	mu sync.Mutex
	// next is the listing that has not begun; nil if nobody waits for one.
	next *listingCall
}

type listingCall struct {
	once    sync.Once
	listing *Listing
	err     error
}

// List reads a whole zone as it is at some time after the call.
func (c *Client) List(ctx context.Context, zone string) (*Listing, error) {
	c.mu.Lock()

	shared := c.listings[zone]
	if shared == nil {
		shared = &listings{}
		c.listings[zone] = shared
	}

	if shared.next == nil {
		shared.next = &listingCall{}
	}

	call := shared.next
	c.mu.Unlock()

	// One listing at a time; who comes first of those that wait for this one makes it.
	shared.mu.Lock()
	defer shared.mu.Unlock()

	call.once.Do(func() {
		c.mu.Lock()
		shared.next = nil
		c.mu.Unlock()

		// Others wait for it: it does not end with the one that asked first.
		call.listing, call.err = c.list(context.WithoutCancel(ctx), zone)
	})

	return call.listing, call.err
}

func (c *Client) list(ctx context.Context, zone string) (*Listing, error) {
	var records []libdns.Record

	err := c.call(ctx, "list", "list zone "+zone, func(ctx context.Context) (err error) {
		records, err = c.service.GetRecords(ctx, zone+".")

		return err
	})
	if err != nil {
		return nil, err
	}

	return newListing(zone, records), nil
}

// Add adds records to a zone.
func (c *Client) Add(ctx context.Context, zone string, records []libdns.Record) error {
	if len(records) == 0 {
		return nil
	}

	return c.call(ctx, "add", "add to zone "+zone+" "+name(records), func(ctx context.Context) error {
		_, err := c.service.AppendRecords(ctx, zone+".", records)

		return err
	})
}

// Delete removes records from a zone, by their exact value.
func (c *Client) Delete(ctx context.Context, zone string, records []libdns.Record) error {
	if len(records) == 0 {
		return nil
	}

	return c.call(ctx, "delete", "delete from zone "+zone+" "+name(records), func(ctx context.Context) error {
		deleted, err := c.service.DeleteRecords(ctx, zone+".", records)
		if err == nil && len(deleted) < len(records) {
			// The mark of a record that is still there must stay.
			return fmt.Errorf("%w: %d of %d", errNotDeleted, len(deleted), len(records))
		}

		return err
	})
}

// name is the first of the records, for words.
func name(records []libdns.Record) string {
	rr := records[0].RR()
	if len(records) == 1 {
		return rr.Type + " " + rr.Name
	}

	return fmt.Sprintf("%s %s and %d more", rr.Type, rr.Name, len(records)-1)
}

var errNotDeleted = errors.New("the service found fewer records to delete than it had listed")

var errPanic = errors.New("the library cannot read the answer")

// call makes one call in time. The libraries don't all mind their context while they
// read, so a call that does not come back is left to end by itself.
func (c *Client) call(ctx context.Context, operation, words string, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()

	start := c.clock.Now()
	done := make(chan error, 1)

	go func() {
		// Answers that a library takes for impossible must not end the operator.
		defer func() {
			if recover() != nil {
				done <- errPanic
			}
		}()

		done <- do(ctx)
	}()

	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		err = ctx.Err()
	}

	if c.calls != nil {
		c.calls.Observe("dns-"+c.kind, operation, c.clock.Since(start), err)
	}

	if err == nil {
		return nil
	}

	return classify(words, err, c.redact)
}

// apply makes the changes in a zone, in an order in which a crash leaves no record of ours
// without its mark: marks come before and go after their records. What is to go goes even
// where what is to come is refused.
func (c *Client) apply(ctx context.Context, zone string, todo changes) error {
	added := c.Add(ctx, zone, todo.addMarks)
	if added == nil {
		added = c.Add(ctx, zone, todo.addRecords)
	}

	deleted := c.Delete(ctx, zone, todo.deleteRecords)
	if deleted == nil {
		deleted = c.Delete(ctx, zone, todo.deleteMarks)
	}

	return join(added, deleted)
}
