// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/libdns/libdns"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	dnstest "github.com/hyperfleet/hyperfleet/test/dns"
)

var errInterrupted = errors.New("cut")

// interruptedService interrupts the operator at one call to a real server: before the call, or after the call
// so that its response is lost.
type interruptedService struct {
	Service

	remaining       *atomic.Int64
	interruptsAfter bool
}

func (c *interruptedService) call(do func() error) error {
	left := c.remaining.Add(-1)

	switch {
	case left > 0 || (left == 0 && c.interruptsAfter):
		if err := do(); err != nil || left > 0 {
			return err
		}

		return errInterrupted
	default:
		return errInterrupted
	}
}

func (c *interruptedService) GetRecords(ctx context.Context, zone string) (records []libdns.Record, err error) {
	err = c.call(func() (err error) {
		records, err = c.Service.GetRecords(ctx, zone)

		return err
	})

	return records, err
}

func (c *interruptedService) AppendRecords(ctx context.Context, zone string, records []libdns.Record) ([]libdns.Record, error) {
	return records, c.call(func() error {
		_, err := c.Service.AppendRecords(ctx, zone, records)

		return err
	})
}

func (c *interruptedService) DeleteRecords(ctx context.Context, zone string, records []libdns.Record) ([]libdns.Record, error) {
	return records, c.call(func() error {
		_, err := c.Service.DeleteRecords(ctx, zone, records)

		return err
	})
}

// newScope returns a scope for a registration that is not in the API server. Its calls are interrupted after
// the given number.
func newScope(service Service, calls int64, after bool, status v1alpha1.DNSRegistrationStatus) *scope {
	left := &atomic.Int64{}
	left.Store(calls)

	return &scope{
		RegistrationReconciler: &RegistrationReconciler{OperatorUID: operatorUID, Clock: clock.RealClock{}},
		reg: &v1alpha1.DNSRegistration{
			Spec: v1alpha1.DNSRegistrationSpec{
				Claim: v1alpha1.DNSRegistrationClaim{Namespace: "ci", Name: "vm1", UID: "u1"},
				FQDN:  "vm1." + forward, Addresses: []string{"192.0.2.7"},
			},
			Status: status,
		},
		access: &access{
			Client: newClient("rfc2136", &interruptedService{service, left, after}, newRedactor(nil), clock.RealClock{}, nil),
			zones:  []string{forward, reverse}, ttl: defaultTTL,
		},
	}
}

// findUnmarkedRecords returns the records of a zone that have no ownership record, except for records of
// other writers.
func findUnmarkedRecords(t *testing.T, server *dnstest.Server, zone string) string {
	t.Helper()

	all := server.ListRecords(t, zone)

	for _, record := range all {
		name := strings.Fields(record)[0]
		if !strings.HasPrefix(name, "_") && !strings.Contains(strings.Join(all, "\n"), "_hyperfleet."+name) {
			return record
		}
	}

	return ""
}

// A crash of the operator after any call leaves only records with ownership records. The next operator
// reaches the same result: all records, or none.
func TestCrashAtAnyCall(t *testing.T) {
	const most = 16

	server := dnstest.StartBIND(t, newTestConfig())
	service, err := newRFC2136(Settings{
		Provider:    v1alpha1.DNSProvider{Type: "rfc2136", Server: server.Addr},
		Credentials: map[string]string{"keyName": dnstest.KeyName, "key": server.Key},
	})
	if err != nil {
		t.Fatal(err)
	}

	const forever = 1 << 40

	for i := range int64(2 * most) {
		calls, after := i/2+1, i%2 == 1

		t.Run(fmt.Sprintf("call %d interrupted after the call: %t", calls, after), func(t *testing.T) {
			spec := newScope(nil, 0, false, v1alpha1.DNSRegistrationStatus{}).reg.Spec

			want, _, err := buildRecords(spec, []string{forward, reverse})
			if err != nil {
				t.Fatal(err)
			}

			// The status is written before the first call.
			status := v1alpha1.DNSRegistrationStatus{Records: want}

			dying := newScope(service, calls, after, status)
			_, died := dying.reconcileZones(t.Context(), want)
			checkRecords(t, server, "while it was registered")

			next := newScope(service, forever, false, status)
			if _, err := next.reconcileZones(t.Context(), want); err != nil {
				t.Fatal(err)
			}

			if got := server.Lookup(t, "vm1."+forward, "A"); len(got) != 1 {
				t.Errorf("registered again: %v", got)
			}

			if died != nil {
				dying = newScope(service, calls, after, next.reg.Status)
				_, _ = dying.reconcileZones(t.Context(), nil)
				checkRecords(t, server, "while it was removed")
			}

			last := newScope(service, forever, false, status)
			if _, err := last.reconcileZones(t.Context(), nil); err != nil || len(last.reg.Status.Records) > 0 {
				t.Errorf("removed: %v, left %v", err, last.reg.Status.Records)
			}

			for _, zone := range []string{forward, reverse} {
				if left := server.ListRecords(t, zone); len(left) > 0 {
					t.Errorf("left in %s: %v", zone, left)
				}
			}
		})
	}
}

func checkRecords(t *testing.T, server *dnstest.Server, when string) {
	t.Helper()

	for _, zone := range []string{forward, reverse} {
		if record := findUnmarkedRecords(t, server, zone); record != "" {
			t.Errorf("%s a record has no ownership record: %s", when, record)
		}
	}
}
