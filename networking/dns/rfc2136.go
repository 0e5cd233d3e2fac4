// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/libdns/libdns"
	"github.com/libdns/rfc2136"
	mdns "github.com/miekg/dns"
)

// errNotAuthoritative tells a zone that the server does not have from a key that it does
// not take: RFC 2136 (3.1.1) and RFC 8945 (5.2) have servers answer NOTAUTH to both.
var errNotAuthoritative = errors.New("the server is not authoritative for the zone")

// updates is libdns/rfc2136 that says more of what was refused.
type updates struct{ *rfc2136.Provider }

// GetRecords transfers the zone.
func (u *updates) GetRecords(ctx context.Context, zone string) ([]libdns.Record, error) {
	records, err := u.Provider.GetRecords(ctx, zone)

	return records, u.explain(ctx, zone, err)
}

// AppendRecords adds records.
func (u *updates) AppendRecords(ctx context.Context, zone string, records []libdns.Record) ([]libdns.Record, error) {
	added, err := u.Provider.AppendRecords(ctx, zone, records)

	return added, u.explain(ctx, zone, err)
}

// DeleteRecords removes records.
func (u *updates) DeleteRecords(ctx context.Context, zone string, records []libdns.Record) ([]libdns.Record, error) {
	deleted, err := u.Provider.DeleteRecords(ctx, zone, records)

	return deleted, u.explain(ctx, zone, err)
}

// explain asks the server whether it has the zone, where an error leaves that open.
func (u *updates) explain(ctx context.Context, zone string, err error) error {
	if err == nil || !slices.ContainsFunc(
		[]string{mdns.ErrAuth.Error(), mdns.ErrNoSig.Error(), `"NOTAUTH"`, "xfr rcode: 9"},
		func(text string) bool { return strings.Contains(err.Error(), text) }) {
		return err
	}

	query := new(mdns.Msg)
	query.SetQuestion(zone, mdns.TypeSOA)
	query.RecursionDesired = false

	answer, _, asked := (&mdns.Client{Net: "tcp"}).ExchangeContext(ctx, query, u.Server)
	if asked != nil || (answer.Authoritative && answer.Rcode == mdns.RcodeSuccess && len(answer.Answer) > 0) {
		return err
	}

	return fmt.Errorf("%w: %w", errNotAuthoritative, err)
}
