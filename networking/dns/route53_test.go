// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	dnstest "github.com/hyperfleet/hyperfleet/test/dns"
)

// connectRoute53 connects the AWS SDK to the simulator through environment variables.
func connectRoute53(t *testing.T, server *dnstest.Route53, key string) *Client {
	t.Helper()
	t.Setenv("AWS_ENDPOINT_URL_ROUTE_53", server.URL())
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")

	credentials := map[string]string{"accessKeyId": key, "secretAccessKey": "a-secret-that-must-not-be-shown"}

	service, err := Factories()["route53"](Settings{Credentials: credentials})
	if err != nil {
		t.Fatal(err)
	}

	return newClient("route53", service, newRedactor(credentials), clock.RealClock{}, nil)
}

// Records are added, kept and deleted as parts of record sets, next to records of other writers and over
// more than one page.
func TestRoute53Records(t *testing.T) {
	server := dnstest.StartRoute53(t, 5, forward, reverse)
	for i := range 12 {
		server.PutRecordSet(dnstest.NewRecordSet(fmt.Sprintf("www%d.%s.", i, forward), "A", 60, "198.51.100.1", "198.51.100.2"))
	}

	theirs := server.Records()
	client := connectRoute53(t, server, dnstest.Route53Key)
	owner := Owner{Operator: operatorUID, UID: "u1", Claim: "ci/vm1"}
	zones := []string{forward, reverse}

	want, _, err := buildRecords(v1alpha1.DNSRegistrationSpec{
		FQDN: "vm1." + forward, Addresses: []string{"192.0.2.7", "192.0.2.8", "2001:db8::7"},
	}, zones)
	if err != nil {
		t.Fatal(err)
	}

	reconcileZonesTwice(t, client, zones, owner, want)

	if got := len(server.Records()); got != len(theirs)+10 {
		t.Errorf("%d records, want those of other writers and 10: %s", got, strings.Join(server.Records(), "\n"))
	}

	// With one address less, the record set keeps the other address.
	less, _, _ := buildRecords(newRegistrationSpec("vm1", "192.0.2.8"), zones)
	for _, zone := range zones {
		reconcileZone(t, client, zone, owner, less)
	}

	if got := len(server.Records()); got != len(theirs)+4 {
		t.Errorf("%d records, want those of other writers and 4", got)
	}

	foreign, _, _ := buildRecords(newRegistrationSpec("www7", "192.0.2.8"), zones[:1])
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

func TestRoute53Errors(t *testing.T) {
	server := dnstest.StartRoute53(t, 5, forward)

	_, err := connectRoute53(t, server, "AKIAANOTHER").List(t.Context(), forward)
	if errclass.ReasonOf(err, "") != ReasonAccessDenied || strings.Contains(err.Error(), "must-not-be-shown") {
		t.Errorf("another key: %v", err)
	}

	_, err = connectRoute53(t, server, dnstest.Route53Key).List(t.Context(), "nowhere.example")
	if errclass.ReasonOf(err, "") != ReasonZoneRefused {
		t.Errorf("a zone that is not there: %v", err)
	}
}
