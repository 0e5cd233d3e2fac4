// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/kit/errclass"
	dnstest "github.com/hyperfleet/hyperfleet/test/dns"
)

func connectCloudflare(t *testing.T, server *dnstest.Cloudflare, token string) *Client {
	t.Helper()

	credentials := map[string]string{"apiToken": token}

	service, err := Factories()["cloudflare"](Settings{Credentials: credentials, Transport: server.Transport()})
	if err != nil {
		t.Fatal(err)
	}

	return newClient("cloudflare", service, newRedactor(credentials), clock.RealClock{}, nil)
}

// Records are added, kept and deleted, next to records of other writers and over more than one page.
func TestCloudflareRecords(t *testing.T) {
	t.Parallel()

	server := dnstest.StartCloudflare(t, forward, reverse)
	for i := range 150 {
		server.AddRecord(forward, dnstest.CloudflareRecord{Type: "A", Name: fmt.Sprintf("www%d.%s", i, forward), Content: "198.51.100.1", TTL: 60})
	}

	theirs := server.Records()
	client := connectCloudflare(t, server, dnstest.CloudflareToken)
	owner := Owner{Operator: operatorUID, UID: "u1", Claim: "ci/vm1"}
	zones := []string{forward, reverse}

	want, _, err := buildRecords(newRegistrationSpec("vm1", "192.0.2.7"), zones)
	if err != nil {
		t.Fatal(err)
	}

	reconcileZonesTwice(t, client, zones, owner, want)

	if got := len(server.Records()); got != len(theirs)+4 {
		t.Errorf("%d records, want those of other writers and 4", got)
	}

	foreign, _, _ := buildRecords(newRegistrationSpec("www7", "192.0.2.8"), zones)
	if todo := reconcileZone(t, client, forward, Owner{Operator: operatorUID, UID: "u2"}, foreign); len(todo.conflicts) != 1 || !todo.isEmpty() {
		t.Errorf("a name of another writer: %+v", todo)
	}

	for _, zone := range zones {
		reconcileZone(t, client, zone, owner, nil)
	}

	if diff := cmp.Diff(theirs, server.Records()); diff != "" {
		t.Error(diff)
	}
}

func TestCloudflareErrors(t *testing.T) {
	t.Parallel()

	server := dnstest.StartCloudflare(t, forward)

	const wrong = "another-token-that-must-not-be-shown"

	_, err := connectCloudflare(t, server, wrong).List(t.Context(), forward)
	if errclass.ReasonOf(err, "") != ReasonAccessDenied || strings.Contains(err.Error(), wrong) {
		t.Errorf("another token: %v", err)
	}

	_, err = connectCloudflare(t, server, dnstest.CloudflareToken).List(t.Context(), "nowhere.example")
	if errclass.ReasonOf(err, "") != ReasonZoneRefused {
		t.Errorf("a zone that is not there: %v", err)
	}
}
