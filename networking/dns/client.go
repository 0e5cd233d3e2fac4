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

// callTimeout is the timeout of one call to a library, which may send many requests to the service. The
// client does not retry a failed call, because its result may be unknown. The controller retries with
// back-off, and lists the zone first.
const callTimeout = 30 * time.Second

// Client calls one DNS service. Each call has a timeout and is recorded in the metrics, and its errors
// contain no secret. A Client is safe for concurrent use.
type Client struct {
	service Service
	kind    string
	redact  log.Redactor
	clock   clock.Clock
	calls   *metrics.CallMetrics

	mu             sync.Mutex
	listingsByZone map[string]*zoneListings
}

func newClient(kind string, service Service, redact log.Redactor, clk clock.Clock, calls *metrics.CallMetrics) *Client {
	return &Client{
		service: service, kind: kind, redact: redact, clock: clk, calls: calls, listingsByZone: map[string]*zoneListings{},
	}
}

// zoneListings shares the listings of one zone between callers. A caller that comes while a listing runs
// waits for the next listing. The next listing shows all records that were written before the caller came.
type zoneListings struct {
	mu sync.Mutex
	// waiting is the listing that has not started yet. It is nil if no caller waits.
	waiting *listingCall
}

type listingCall struct {
	once    sync.Once
	listing *Listing
	err     error
}

// List returns all records of a zone, as they are at some time after the start of the call. Callers that wait at the
// same time share one listing.
func (c *Client) List(ctx context.Context, zone string) (*Listing, error) {
	c.mu.Lock()

	shared := c.listingsByZone[zone]
	if shared == nil {
		shared = &zoneListings{}
		c.listingsByZone[zone] = shared
	}

	if shared.waiting == nil {
		shared.waiting = &listingCall{}
	}

	call := shared.waiting
	c.mu.Unlock()

	// Only one listing runs at a time. The first caller that gets the lock runs it for all callers that wait.
	shared.mu.Lock()
	defer shared.mu.Unlock()

	call.once.Do(func() {
		// This listing starts now, and may miss records that are written later. So callers that come later wait
		// for another one.
		c.mu.Lock()
		shared.waiting = nil
		c.mu.Unlock()

		// Other callers wait for this listing, so it must not end with the context of the first caller.
		call.listing, call.err = c.list(context.WithoutCancel(ctx), zone)
	})

	return call.listing, call.err
}

func (c *Client) list(ctx context.Context, zone string) (*Listing, error) {
	var records []libdns.Record

	err := c.callService(ctx, "list", "list zone "+zone, func(ctx context.Context) (err error) {
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

	return c.callService(ctx, "add", "add to zone "+zone+" "+summarizeRecords(records), func(ctx context.Context) error {
		_, err := c.service.AppendRecords(ctx, zone+".", records)

		return err
	})
}

// Delete deletes records from a zone by their exact value. It returns an error if the service deletes fewer
// records.
func (c *Client) Delete(ctx context.Context, zone string, records []libdns.Record) error {
	if len(records) == 0 {
		return nil
	}

	return c.callService(ctx, "delete", "delete from zone "+zone+" "+summarizeRecords(records), func(ctx context.Context) error {
		deleted, err := c.service.DeleteRecords(ctx, zone+".", records)
		if err == nil && len(deleted) < len(records) {
			// After this error, apply keeps the ownership records, because some of these records may still exist.
			return fmt.Errorf("%w: %d of %d", errNotDeleted, len(deleted), len(records))
		}

		return err
	})
}

// summarizeRecords returns a text with the first record and the number of other records.
func summarizeRecords(records []libdns.Record) string {
	rr := records[0].RR()
	if len(records) == 1 {
		return rr.Type + " " + rr.Name
	}

	return fmt.Sprintf("%s %s and %d more", rr.Type, rr.Name, len(records)-1)
}

var errNotDeleted = errors.New("the service deleted fewer records than it had listed")

var errPanic = errors.New("the library panicked while it parsed the response")

// callService makes one call with a timeout. Some libraries ignore their context while they read a
// response, so callService returns after the timeout even if the call still runs in the background.
func (c *Client) callService(ctx context.Context, operation, description string, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()

	start := c.clock.Now()
	done := make(chan error, 1)

	go func() {
		// A response that a library cannot handle must not crash the operator.
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

	return classify(description, err, c.redact)
}

// apply makes the changes in a zone. It adds ownership records before their records and deletes them after
// their records, so a crash leaves none of our records without an ownership record. It deletes records even
// if adding records failed.
func (c *Client) apply(ctx context.Context, zone string, todo changes) error {
	addErr := c.Add(ctx, zone, todo.addOwnership)
	if addErr == nil {
		addErr = c.Add(ctx, zone, todo.addRecords)
	}

	deleteErr := c.Delete(ctx, zone, todo.deleteRecords)
	if deleteErr == nil {
		deleteErr = c.Delete(ctx, zone, todo.deleteOwnership)
	}

	return joinErrors(addErr, deleteErr)
}
