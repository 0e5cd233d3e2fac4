// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"encoding/xml"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Route53Key is the access key id that the simulator takes.
const Route53Key = "AKIAFORTESTSONLY0000"

const route53Namespace = "https://route53.amazonaws.com/doc/2013-04-01/"

// Route53 is a simulator of the part of Amazon Route 53's API that is about records
// (https://docs.aws.amazon.com/Route53/latest/APIReference/): zones by name, record sets
// listed in pages, and changes, where a DELETE has to name a set just as it is. Any other
// call is answered 501 and fails the test. It looks at the access key of a call and not at
// its signature.
type Route53 struct {
	t      testing.TB
	server *httptest.Server
	page   int

	mu    sync.Mutex
	zones []string
	sets  map[string]RecordSet
}

// RecordSet is all records of one name and type.
type RecordSet struct {
	Name    string        `xml:"Name"`
	Type    string        `xml:"Type"`
	TTL     int64         `xml:"TTL"`
	Records []RecordValue `xml:"ResourceRecords>ResourceRecord"`
}

// RecordValue is the value of one record of a set.
type RecordValue struct {
	Value string `xml:"Value"`
}

// Set makes a RecordSet.
func Set(name, kind string, ttl int64, values ...string) RecordSet {
	set := RecordSet{Name: name, Type: kind, TTL: ttl}
	for _, value := range values {
		set.Records = append(set.Records, RecordValue{Value: value})
	}

	return set
}

// StartRoute53 starts the simulator with its zones; a page of a listing has so many sets.
func StartRoute53(t testing.TB, page int, zones ...string) *Route53 {
	t.Helper()

	r := &Route53{t: t, page: page, zones: zones, sets: map[string]RecordSet{}}
	for _, zone := range zones {
		r.Put(Set(zone+".", "NS", 172800, "ns-1.example.net."))
	}

	r.server = httptest.NewServer(http.HandlerFunc(r.serve))
	t.Cleanup(r.server.Close)

	return r
}

// URL of the simulator, for AWS_ENDPOINT_URL_ROUTE_53.
func (r *Route53) URL() string { return r.server.URL }

// Put writes a set as somebody else.
func (r *Route53) Put(set RecordSet) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.sets[set.key()] = set
}

// Records gives all records as "TYPE name value", sorted.
func (r *Route53) Records() []string {
	r.mu.Lock()
	defer r.mu.Unlock()

	out := []string{}

	for _, set := range r.sets {
		for _, record := range set.Records {
			out = append(out, set.Type+" "+set.Name+" "+record.Value)
		}
	}

	slices.Sort(out)

	return out
}

func (s RecordSet) key() string { return strings.ToLower(s.Name) + " " + s.Type }

func (r *Route53) serve(w http.ResponseWriter, request *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if !strings.Contains(request.Header.Get("Authorization"), "Credential="+Route53Key+"/") {
		fail(w, http.StatusForbidden, "InvalidClientTokenId", "The security token included in the request is invalid.")

		return
	}

	path := strings.TrimSuffix(strings.TrimPrefix(request.URL.Path, "/2013-04-01/"), "/")
	zone, isSets := strings.CutSuffix(strings.TrimPrefix(path, "hostedzone/"), "/rrset")

	switch {
	case request.Method == http.MethodGet && path == "hostedzonesbyname":
		r.zonesByName(w, request.URL.Query())
	case isSets && !slices.ContainsFunc(r.zones, func(name string) bool { return hostedZone(name) == zone }):
		fail(w, http.StatusNotFound, "NoSuchHostedZone", "No hosted zone found with ID: "+zone)
	case isSets && request.Method == http.MethodGet:
		r.list(w, zone, request.URL.Query())
	case isSets && request.Method == http.MethodPost:
		r.change(w, request)
	default:
		r.t.Errorf("Route 53 has no %s %s here", request.Method, request.URL.Path)
		fail(w, http.StatusNotImplemented, "NotImplemented", "unknown call")
	}
}

func fail(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "text/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, `<ErrorResponse xmlns=%q><Error><Type>Sender</Type><Code>%s</Code><Message>%s</Message></Error>`+
		`<RequestId>1</RequestId></ErrorResponse>`, route53Namespace, code, message)
}

func answer(w http.ResponseWriter, name, body string) {
	w.Header().Set("Content-Type", "text/xml")
	fmt.Fprintf(w, `<?xml version="1.0"?><%s xmlns=%q>%s</%s>`, name, route53Namespace, body, name)
}

func hostedZone(name string) string { return "Z" + strings.ToUpper(strings.ReplaceAll(name, ".", "")) }

// zonesByName lists zones from a name on, in the order of names.
func (r *Route53) zonesByName(w http.ResponseWriter, query url.Values) {
	var b strings.Builder

	for _, name := range r.zones {
		if name+"." == query.Get("dnsname") {
			fmt.Fprintf(&b, "<HostedZone><Id>/hostedzone/%s</Id><Name>%s.</Name><CallerReference>t</CallerReference>"+
				"<Config><PrivateZone>false</PrivateZone></Config></HostedZone>", hostedZone(name), name)
		}
	}

	answer(w, "ListHostedZonesByNameResponse", "<HostedZones>"+b.String()+
		"</HostedZones><IsTruncated>false</IsTruncated><MaxItems>1</MaxItems>")
}

func (r *Route53) list(w http.ResponseWriter, zone string, query url.Values) {
	var keys []string

	for key, set := range r.sets {
		if hostedZone(r.zoneOf(set.Name)) == zone && key >= query.Get("name")+" "+query.Get("type") {
			keys = append(keys, key)
		}
	}

	slices.Sort(keys)

	var b strings.Builder

	b.WriteString("<ResourceRecordSets>")

	for _, key := range keys[:min(len(keys), r.page)] {
		raw, err := xml.Marshal(struct {
			XMLName xml.Name `xml:"ResourceRecordSet"`
			RecordSet
		}{RecordSet: r.sets[key]})
		if err != nil {
			r.t.Error(err)
		}

		b.Write(raw)
	}

	b.WriteString("</ResourceRecordSets>")

	if len(keys) > r.page {
		next := r.sets[keys[r.page]]
		fmt.Fprintf(&b, "<IsTruncated>true</IsTruncated><NextRecordName>%s</NextRecordName><NextRecordType>%s</NextRecordType>",
			next.Name, next.Type)
	} else {
		b.WriteString("<IsTruncated>false</IsTruncated>")
	}

	answer(w, "ListResourceRecordSetsResponse", b.String()+"<MaxItems>1000</MaxItems>")
}

// zoneOf is the longest zone that a name is in.
func (r *Route53) zoneOf(name string) string {
	found := ""

	for _, zone := range r.zones {
		if (name == zone+"." || strings.HasSuffix(name, "."+zone+".")) && len(zone) > len(found) {
			found = zone
		}
	}

	return found
}

// change makes all changes of a batch or none.
func (r *Route53) change(w http.ResponseWriter, request *http.Request) {
	var batch struct {
		Changes []struct {
			Action string    `xml:"Action"`
			Set    RecordSet `xml:"ResourceRecordSet"`
		} `xml:"ChangeBatch>Changes>Change"`
	}
	if err := xml.NewDecoder(request.Body).Decode(&batch); err != nil || len(batch.Changes) == 0 {
		fail(w, http.StatusBadRequest, "InvalidInput", "the batch cannot be read")

		return
	}

	after := maps.Clone(r.sets)

	for _, change := range batch.Changes {
		there, known := after[change.Set.key()]
		invalid := len(change.Set.Records) == 0 || change.Set.TTL <= 0 || r.zoneOf(change.Set.Name) == ""

		switch {
		case change.Action == "UPSERT" && !invalid:
			after[change.Set.key()] = change.Set
		case change.Action == "DELETE" && known && there.TTL == change.Set.TTL && sameValues(there.Records, change.Set.Records):
			delete(after, change.Set.key())
		default:
			fail(w, http.StatusBadRequest, "InvalidChangeBatch",
				fmt.Sprintf("Tried to %s resource record set %s but it was not found or the values do not match",
					change.Action, change.Set.Name))

			return
		}
	}

	r.sets = after

	answer(w, "ChangeResourceRecordSetsResponse", "<ChangeInfo><Id>/change/C1</Id><Status>PENDING</Status>"+
		"<SubmittedAt>2026-01-01T00:00:00Z</SubmittedAt></ChangeInfo>")
}

func sameValues(a, b []RecordValue) bool {
	order := func(x, y RecordValue) int { return strings.Compare(x.Value, y.Value) }

	return slices.Equal(slices.SortedFunc(slices.Values(a), order), slices.SortedFunc(slices.Values(b), order))
}
