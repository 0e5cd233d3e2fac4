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

// errNotAuthoritative means that the server does not have the zone. The server also responds with NOTAUTH
// if it rejects the key (RFC 2136, 3.1.1, and RFC 8945, 5.2), so this error separates the two cases.
var errNotAuthoritative = errors.New("the server is not authoritative for the zone")

// rfc2136Provider is libdns/rfc2136 with better errors for refused requests.
type rfc2136Provider struct{ *rfc2136.Provider }

// GetRecords transfers the zone.
func (u *rfc2136Provider) GetRecords(ctx context.Context, zone string) ([]libdns.Record, error) {
	records, err := u.Provider.GetRecords(ctx, zone)

	return records, u.explain(ctx, zone, err)
}

// AppendRecords adds records.
func (u *rfc2136Provider) AppendRecords(ctx context.Context, zone string, records []libdns.Record) ([]libdns.Record, error) {
	added, err := u.Provider.AppendRecords(ctx, zone, records)

	return added, u.explain(ctx, zone, err)
}

// DeleteRecords deletes records.
func (u *rfc2136Provider) DeleteRecords(ctx context.Context, zone string, records []libdns.Record) ([]libdns.Record, error) {
	deleted, err := u.Provider.DeleteRecords(ctx, zone, records)

	return deleted, u.explain(ctx, zone, err)
}

// explain wraps an error with errNotAuthoritative if the error is ambiguous and the server does not have
// the zone. It asks the server for the SOA record of the zone.
func (u *rfc2136Provider) explain(ctx context.Context, zone string, err error) error {
	if err == nil || !slices.ContainsFunc(
		[]string{mdns.ErrAuth.Error(), mdns.ErrNoSig.Error(), `"NOTAUTH"`, "xfr rcode: 9"},
		func(text string) bool { return strings.Contains(err.Error(), text) }) {
		return err
	}

	query := new(mdns.Msg)
	query.SetQuestion(zone, mdns.TypeSOA)
	query.RecursionDesired = false

	response, _, queryErr := (&mdns.Client{Net: "tcp"}).ExchangeContext(ctx, query, u.Server)
	if queryErr != nil || (response.Authoritative && response.Rcode == mdns.RcodeSuccess && len(response.Answer) > 0) {
		return err
	}

	return fmt.Errorf("%w: %w", errNotAuthoritative, err)
}
