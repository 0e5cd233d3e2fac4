// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"encoding/base64"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	mdns "github.com/miekg/dns"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	dnstest "github.com/hyperfleet/hyperfleet/test/dns"
	"github.com/hyperfleet/hyperfleet/test/must"
)

const (
	forward = "ci.example.com"
	reverse = "2.0.192.in-addr.arpa"
	locked  = "prod.example.com"
)

func newTestConfig() dnstest.Config {
	return dnstest.Config{Zones: []string{forward, reverse, "8.b.d.0.1.0.0.2.ip6.arpa"}, Locked: []string{locked}}
}

func listServers() map[string]func(testing.TB, dnstest.Config) *dnstest.Server {
	return map[string]func(testing.TB, dnstest.Config) *dnstest.Server{
		"BIND": dnstest.StartBIND, "Knot": dnstest.StartKnot,
	}
}

func newTestClient(t testing.TB, addr, keyName, key string) *Client {
	t.Helper()

	credentials := map[string]string{"keyName": keyName, "key": key}

	service, err := newRFC2136(Settings{
		Provider: v1alpha1.DNSProvider{Type: "rfc2136", Server: addr}, Credentials: credentials,
	})
	if err != nil {
		t.Fatal(err)
	}

	return newClient("rfc2136", service, newRedactor(credentials), clock.RealClock{}, nil)
}

func newRegistrationSpec(name, addr string) v1alpha1.DNSRegistrationSpec {
	return v1alpha1.DNSRegistrationSpec{FQDN: name + "." + forward, Addresses: []string{addr}}
}

// reconcileZone brings one zone to the desired records of the owner's machine.
func reconcileZone(t testing.TB, client *Client, zone string, owner Owner, want []v1alpha1.DNSRecord) changes {
	t.Helper()

	listing, err := client.List(t.Context(), zone)
	if err != nil {
		t.Fatal(err)
	}

	var here []v1alpha1.DNSRecord

	for _, record := range want {
		if record.Zone == zone {
			here = append(here, record)
		}
	}

	todo := planChanges(listing, owner, here, time.Minute)
	if err := client.apply(t.Context(), zone, todo); err != nil {
		t.Fatal(err)
	}

	return todo
}

// reconcileZonesTwice brings the zones to the desired records, and checks that a second reconcile changes
// nothing.
func reconcileZonesTwice(t testing.TB, client *Client, zones []string, owner Owner, want []v1alpha1.DNSRecord) {
	t.Helper()

	for _, zone := range zones {
		reconcileZone(t, client, zone, owner, want)

		if again := reconcileZone(t, client, zone, owner, want); !again.isEmpty() || len(again.conflicts) > 0 {
			t.Errorf("a second reconcile of %s changes records: %+v", zone, again)
		}
	}
}

func TestRecordsOnRealServers(t *testing.T) {
	t.Parallel()

	for name, start := range listServers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			server := start(t, newTestConfig())
			client := newTestClient(t, server.Addr, dnstest.KeyName, server.Key)
			owner := Owner{Operator: "op-1", UID: "6a8f6a0e-2c39-4d57-9b1d-0c6a7d0f3a11", Claim: "ci/vm1"}
			zones := []string{"8.b.d.0.1.0.0.2.ip6.arpa", reverse, forward}

			want, withoutReverseZone, err := buildRecords(v1alpha1.DNSRegistrationSpec{
				FQDN: "VM1." + forward + ".", Addresses: []string{"192.0.2.7", "2001:db8::7", "198.51.100.7", "fe80::1"},
			}, zones)
			if err != nil || !cmp.Equal(withoutReverseZone, []string{"198.51.100.7"}) || len(want) != 5 {
				t.Fatalf("wanted() = %v, %v, %v", want, withoutReverseZone, err)
			}

			reconcileZonesTwice(t, client, zones, owner, want)

			got := map[string][]string{
				"A": server.Lookup(t, "vm1."+forward, "A"), "AAAA": server.Lookup(t, "vm1."+forward, "AAAA"),
				"PTR": server.Lookup(t, "7.2.0.192.in-addr.arpa", "PTR"), "PTR6": server.Lookup(t, want[3].Name, "PTR"),
			}
			if diff := cmp.Diff(map[string][]string{
				"A": {"192.0.2.7", "198.51.100.7"}, "AAAA": {"2001:db8::7"}, "PTR": {"vm1." + forward + "."}, "PTR6": {"vm1." + forward + "."},
			}, got); diff != "" {
				t.Error(diff)
			}

			if marks := server.Lookup(t, "_hyperfleet.vm1."+forward, "TXT"); len(marks) != 3 ||
				!strings.Contains(marks[0], "claim=ci/vm1") {
				t.Errorf("ownership records %q", marks)
			}

			// Somebody deletes the records and leaves the ownership records, or the other way round.
			server.RemoveRecords(t, forward, "vm1."+forward+". 60 IN A 192.0.2.7")
			reconcileZonesTwice(t, client, zones, owner, want)

			if got := server.Lookup(t, "vm1."+forward, "A"); !cmp.Equal(got, []string{"192.0.2.7", "198.51.100.7"}) {
				t.Errorf("after the record was deleted by hand: %v", got)
			}

			for _, mark := range server.Lookup(t, "_hyperfleet.vm1."+forward, "TXT") {
				server.RemoveRecords(t, forward, "_hyperfleet.vm1."+forward+`. 60 IN TXT "`+mark+`"`)
			}

			if todo := reconcileZone(t, client, forward, owner, want); len(todo.conflicts) == 0 || len(todo.deleteRecords) > 0 {
				t.Errorf("without ownership records, the records belong to somebody else: %+v", todo)
			}

			server.RemoveRecords(t, forward, server.ListRecords(t, forward)...)
			reconcileZonesTwice(t, client, zones, owner, want)

			// The machine gets another address, and then none.
			moved, _, _ := buildRecords(newRegistrationSpec("vm1", "192.0.2.8"), zones)
			for _, zone := range zones {
				reconcileZone(t, client, zone, owner, moved)
			}

			if got := server.Lookup(t, "vm1."+forward, "A"); !cmp.Equal(got, []string{"192.0.2.8"}) {
				t.Errorf("after the address has changed: %v", got)
			}

			for _, zone := range zones {
				reconcileZone(t, client, zone, owner, nil)

				if left := server.ListRecords(t, zone); len(left) > 0 {
					t.Errorf("left in %s: %v", zone, left)
				}
			}
		})
	}
}

// A refused call returns an error with a reason and a fix, and without the key.
func TestRefusals(t *testing.T) {
	t.Parallel()

	other := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("not-the-key!", 3)))

	for name, start := range listServers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			server := start(t, newTestConfig())

			// Knot sends the same response for a key without permission and for an unknown key.
			lockedReason := ReasonZoneRefused
			if name == "Knot" {
				lockedReason = ReasonTSIGRefused
			}

			for _, row := range []struct {
				why, keyName, key, zone string
				reason                  string
			}{
				{"another secret", dnstest.KeyName, other, forward, ReasonTSIGRefused},
				{"a key that the server does not know", "stranger.", server.Key, forward, ReasonTSIGRefused},
				{"a zone of another owner", dnstest.KeyName, server.Key, locked, lockedReason},
				{"a missing zone", dnstest.KeyName, server.Key, "nowhere.example", ReasonZoneRefused},
			} {
				client := newTestClient(t, server.Addr, row.keyName, row.key)
				want := []v1alpha1.DNSRecord{{Zone: row.zone, Name: "vm1." + row.zone, Type: typeA, Value: "192.0.2.7"}}
				todo := planChanges(newListing(row.zone, nil), Owner{Operator: "o", UID: "u"}, want, time.Minute)

				_, listed := client.List(t.Context(), row.zone)
				for call, err := range map[string]error{"list": listed, "add": client.apply(t.Context(), row.zone, todo)} {
					switch {
					case err == nil:
						t.Errorf("%s: %s was accepted", row.why, call)
					case errclass.ReasonOf(err, "") != row.reason || errclass.ClassOf(err) != errclass.Configuration:
						t.Errorf("%s: %s: reason %s, class %s: %v", row.why, call, errclass.ReasonOf(err, ""), errclass.ClassOf(err), err)
					case strings.Contains(err.Error(), row.key):
						t.Errorf("%s: %s: the key is in the error", row.why, call)
					}
				}
			}

			server.Stop(t)

			_, err := newTestClient(t, server.Addr, dnstest.KeyName, server.Key).List(t.Context(), forward)
			if errclass.ReasonOf(err, "") != ReasonUnreachable || errclass.ClassOf(err) != errclass.Transient {
				t.Errorf("no server: %v", err)
			}

			server.Start(t)
		})
	}
}

// A zone transfer that breaks off or ends with an error lists no record at all: an incomplete list would let a machine
// take the name of somebody else's record.
func TestIncompleteTransfers(t *testing.T) {
	t.Parallel()

	key := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32)))

	answer := func(w mdns.ResponseWriter, query *mdns.Msg, rcode int, records ...mdns.RR) {
		response := new(mdns.Msg)
		response.SetRcode(query, rcode)
		response.Answer = records
		response.SetTsig(dnstest.KeyName, mdns.HmacSHA256, 300, time.Now().Unix())
		w.TsigTimersOnly(true) // as RFC 8945, 5.3.1 wants it after the first message
		_ = w.WriteMsg(response)
	}

	for name, tc := range map[string]struct {
		end        func(mdns.ResponseWriter, *mdns.Msg, mdns.RR)
		isComplete bool
	}{
		"complete": {func(w mdns.ResponseWriter, query *mdns.Msg, soa mdns.RR) { answer(w, query, mdns.RcodeSuccess, soa) }, true},
		"cut":      {func(mdns.ResponseWriter, *mdns.Msg, mdns.RR) {}, false},
		"refused in the middle": {func(w mdns.ResponseWriter, query *mdns.Msg, _ mdns.RR) {
			answer(w, query, mdns.RcodeRefused)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			client := newTestClient(t, startBrokenServer(t, key, tc.end), dnstest.KeyName, key)

			if listing, err := client.List(t.Context(), forward); (err == nil) != tc.isComplete || (listing != nil) != tc.isComplete {
				t.Errorf("list = %+v, %v, want a list: %t", listing, err, tc.isComplete)
			}
		})
	}
}

// startBrokenServer starts a server that sends the beginning of a zone, calls end with the SOA record of the zone, and
// closes the connection.
func startBrokenServer(t *testing.T, key string, end func(mdns.ResponseWriter, *mdns.Msg, mdns.RR)) string {
	t.Helper()

	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must.Do(t, err)

	handler := mdns.HandlerFunc(func(w mdns.ResponseWriter, query *mdns.Msg) {
		response := new(mdns.Msg)
		response.SetReply(query)

		for _, text := range []string{
			forward + ". 60 IN SOA ns." + forward + ". admin." + forward + ". 1 60 60 60 60", "vm2." + forward + ". 60 IN A 192.0.2.9",
		} {
			rr, err := mdns.NewRR(text)
			if err != nil {
				panic(err)
			}

			response.Answer = append(response.Answer, rr)
		}

		response.SetTsig(dnstest.KeyName, mdns.HmacSHA256, 300, time.Now().Unix())
		_ = w.WriteMsg(response)

		end(w, query, response.Answer[0])
		_ = w.Close()
	})
	server := &mdns.Server{Listener: listener, Handler: handler, TsigSecret: map[string]string{dnstest.KeyName: key}}
	done := make(chan error, 1)

	go func() { done <- server.ActivateAndServe() }()

	t.Cleanup(func() {
		_ = listener.Close()

		<-done
	})

	return listener.Addr().String()
}
