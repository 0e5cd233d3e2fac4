// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-tpm/tpm2"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/devid"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
	"github.com/hyperfleet/hyperfleet/test/tpm"
)

// devIDFixture is a fixture with a namespace, an operator and a CA that makes TPMs.
type certOffice struct {
	t         *testing.T
	namespace string
	tpms      *tpm.Authority
	devices   config.DevID
	recorder  *events.FakeRecorder
	cached    client.Client
	operator  *httptest.Server
}

func newCertOffice(t *testing.T) *certOffice {
	t.Helper()

	w := &certOffice{
		t: t, namespace: env.Namespace(t), tpms: tpm.NewAuthority(t), devices: tpm.NewDevID(t),
		recorder: events.NewFakeRecorder(1000), cached: indexed(t),
	}
	w.operator = w.start(w.devices)

	return w
}

// startOperator starts a replica. Its only state is in the API server.
func (w *certOffice) start(devices config.DevID) *httptest.Server {
	w.t.Helper()

	metrics, err := devid.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		w.t.Fatal(err)
	}

	mux := http.NewServeMux()
	mux.Handle(devid.Pattern, &devid.Handler{
		Client: w.cached, Live: env.Client, Recorder: w.recorder, Key: key, Authority: devices,
		Metrics: metrics, Clock: clock.RealClock{},
	})

	server := httptest.NewServer(mux)
	w.t.Cleanup(server.Close)

	return server
}

// startCachedClient returns a client that reads from a cache, as the client of the manager does.
func indexed(t *testing.T) client.Client {
	t.Helper()

	ctx, cancel := context.WithCancel(context.Background())

	informers, err := cache.New(env.Config, cache.Options{Scheme: env.Scheme})
	if err != nil {
		t.Fatal(err)
	}

	if err := informers.IndexField(ctx, &v1alpha1.MachineClaim{}, devid.IndexEK, devid.ExtractEK); err != nil {
		t.Fatal(err)
	}

	done := make(chan struct{})

	go func() {
		defer close(done)

		_ = informers.Start(ctx)
	}()

	t.Cleanup(func() { cancel(); <-done })

	if !informers.WaitForCacheSync(t.Context()) {
		t.Fatal("the cache did not sync")
	}

	out, err := client.New(env.Config, client.Options{Scheme: env.Scheme, Cache: &client.CacheOptions{Reader: informers}})
	if err != nil {
		t.Fatal(err)
	}

	return out
}

// createClaim creates a claim whose machine attests with its TPM, after the case has changed the claim.
func (w *certOffice) claim(name string, change func(*v1alpha1.MachineClaim)) *v1alpha1.MachineClaim {
	w.t.Helper()

	out := claimOf(w.namespace, name)
	out.Spec.Lifecycle = &v1alpha1.Lifecycle{MaxLifetime: &metav1.Duration{Duration: 3 * time.Hour}}
	out.Status.BootstrapInfo = &v1alpha1.BootstrapInfo{Identity: &v1alpha1.MachineIdentity{
		SPIFFEID: "spiffe://hyperfleet.io/" + name, Method: v1alpha1.AttestationTPM,
	}}

	if change != nil {
		change(out)
	}

	return makeClaim(w.t, out)
}

func bearer(claim *v1alpha1.MachineClaim) string {
	return "Bearer " + vmspec.DevIDCode(key, claim.Namespace, claim.Name, claim.UID)
}

// requestCertificate sends the request of the claim's machine. The body is a text, or a value that is encoded
// as JSON.
func askCertificate(t *testing.T, operator *httptest.Server, claim *v1alpha1.MachineClaim, bearer string, body any) told {
	t.Helper()

	data, ok := body.(string)
	if !ok {
		written, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}

		data = string(written)
	}

	return ask(t, operator, vmspec.DevIDPath(claim), bearer, data)
}

// parseCertificate parses the certificate of a response.
func leaf(t *testing.T, got told) *x509.Certificate {
	t.Helper()

	var given guest.DevIDCertificate
	if err := json.Unmarshal([]byte(got.body), &given); err != nil {
		t.Fatal(err)
	}

	block, _ := pem.Decode([]byte(given.Chain))
	if block == nil {
		t.Fatalf("chain %q", given.Chain)
	}

	out, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}

	return out
}

func TestOneDeviceIdentity(t *testing.T) {
	t.Parallel()

	w := newCertOffice(t)
	claim := w.claim("linux-1", nil)
	device := w.tpms.NewTPM(t)
	mine := tpm.NewRequest(t, device)

	// A CA that cannot be loaded now may be loaded later, so the refusal is transient.
	for name, devices := range map[string]config.DevID{
		"none": {}, "not there": {CertFile: w.devices.CertFile + "x", KeyFile: w.devices.KeyFile},
	} {
		got := askCertificate(t, w.start(devices), claim, bearer(claim), mine)
		if got.status != http.StatusServiceUnavailable || got.after == "" || got.refusal.Reason != "" {
			t.Errorf("with an authority that is %s: %+v", name, got)
		}
	}

	got := askCertificate(t, w.operator, claim, bearer(claim), mine)
	if got.status != http.StatusOK {
		t.Fatalf("%+v", got)
	}

	certificate := leaf(t, got)

	roots := x509.NewCertPool()
	if pool, err := os.ReadFile(w.devices.CertFile); err != nil || !roots.AppendCertsFromPEM(pool) {
		t.Fatalf("read authority: %v", err)
	}

	if _, err := certificate.Verify(x509.VerifyOptions{Roots: roots}); err != nil {
		t.Error(err)
	}

	if want := time.Now().Add(3 * time.Hour); certificate.Subject.CommonName != string(claim.UID) ||
		certificate.NotAfter.After(want) || certificate.NotAfter.Before(want.Add(-time.Minute)) {
		t.Errorf("certificate of %q until %s, want until %s", certificate.Subject.CommonName, certificate.NotAfter, want)
	}

	// If the response was lost, every replica returns the same certificate.
	if again := askCertificate(t, w.start(w.devices), claim, bearer(claim), mine); again.body != got.body {
		t.Errorf("second request: %+v", again)
	}

	// A request with the code and another key is refused.
	if other := askCertificate(t, w.operator, claim, bearer(claim), tpm.NewRequest(t, device)); other.status != http.StatusConflict ||
		other.refusal.Reason != guest.ReasonAttestationRefused {
		t.Errorf("another key: %+v", other)
	}

	if status := read(t, w.namespace, claim.Name, &v1alpha1.MachineClaim{}).Status.BootstrapInfo.Identity.Device; status == nil || len(status.PublicKeySHA256) != 64 ||
		len(status.EKCertificateSHA256) != 64 || status.RequestedAt.IsZero() {
		t.Errorf("status %+v", status)
	}

	said, code := heard(w.recorder), bearer(claim)[len("Bearer "):]
	if strings.Count(said, devid.ReasonCertified) != 1 || strings.Count(said, devid.ReasonRefused) != 1 || strings.Contains(said, code) {
		t.Errorf("events:\n%s", said)
	}
}

func TestWhoGetsNoCertificate(t *testing.T) {
	w := newCertOffice(t)
	good, other := w.claim("good", nil), w.claim("other", nil)
	now := metav1.NowMicro()
	mine := tpm.NewRequest(t, w.tpms.NewTPM(t))
	earlier := good.DeepCopy()
	earlier.UID = "0c1d7a6e-0000-4000-8000-000000000000"

	importable, err := tpm2.Unmarshal[tpm2.TPM2BPublic](mine.Public)
	if err != nil {
		t.Fatal(err)
	}

	area, err := importable.Contents()
	if err != nil {
		t.Fatal(err)
	}

	area.ObjectAttributes.FixedTPM = false
	soft := guest.DevIDRequest{Public: tpm2.Marshal(tpm2.New2B(*area))}

	for name, tc := range map[string]struct {
		claim  *v1alpha1.MachineClaim
		bearer string // default: the code of the claim
		body   any    // default: a valid request
		want   int
	}{
		"without a code":              {claim: good, bearer: "Bearer ", want: http.StatusUnauthorized},
		"the code of another machine": {claim: good, bearer: bearer(other), want: http.StatusUnauthorized},
		"the code for the credential": {
			claim: good, bearer: "Bearer " + vmspec.ClaimCode(key, good.Namespace, good.Name, good.UID), want: http.StatusUnauthorized,
		},
		"an earlier claim with the same name": {claim: earlier, want: http.StatusGone},
		"a stopped machine": {
			claim: w.claim("off", func(c *v1alpha1.MachineClaim) { c.Status.Times = &v1alpha1.MachineTimes{Stopped: &now} }), want: http.StatusGone,
		},
		"a machine that does not attest": {
			claim: w.claim("none", func(c *v1alpha1.MachineClaim) { c.Status.BootstrapInfo.Identity = nil }), want: http.StatusForbidden,
		},
		"a machine that attests by a token": {
			claim: w.claim("token", func(c *v1alpha1.MachineClaim) {
				c.Status.BootstrapInfo.Identity.Method = v1alpha1.AttestationJoinToken
			}), want: http.StatusForbidden,
		},
		"no JSON":           {claim: w.claim("a", nil), body: "<html>", want: http.StatusBadRequest},
		"an unknown field":  {claim: w.claim("b", nil), body: `{"public":"AAAA","subject":"root"}`, want: http.StatusBadRequest},
		"two requests":      {claim: w.claim("c", nil), body: `{"public":"AAAA"}{}`, want: http.StatusBadRequest},
		"no key":            {claim: w.claim("d", nil), body: `{}`, want: http.StatusBadRequest},
		"no public area":    {claim: w.claim("e", nil), body: guest.DevIDRequest{Public: []byte("key")}, want: http.StatusBadRequest},
		"too much":          {claim: w.claim("f", nil), body: `{"public":"` + strings.Repeat("A", 64<<10) + `"}`, want: http.StatusBadRequest},
		"an exportable key": {claim: w.claim("g", nil), body: soft, want: http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.bearer == "" {
				tc.bearer = bearer(tc.claim)
			}

			if tc.body == nil {
				tc.body = mine
			}

			got := askCertificate(t, w.operator, tc.claim, tc.bearer, tc.body)
			if got.status != tc.want || got.refusal.Reason != guest.ReasonAttestationRefused || got.refusal.Message == "" || got.after != "" {
				t.Errorf("%+v, want %d", got, tc.want)
			}
		})
	}

	// None of the refused requests affects the machine's own request.
	if got := askCertificate(t, w.operator, good, bearer(good), mine); got.status != http.StatusOK {
		t.Errorf("own request: %+v", got)
	}
}

// If several keys arrive at the same time, at any replica, only one is certified.
func TestKeysAtOnce(t *testing.T) {
	t.Parallel()

	w := newCertOffice(t)
	claim := w.claim("linux-1", nil)
	replicas := []*httptest.Server{w.operator, w.start(w.devices)}
	device := w.tpms.NewTPM(t)

	var requests []guest.DevIDRequest
	for range 4 {
		requests = append(requests, tpm.NewRequest(t, device))
	}

	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		count = map[int]int{}
	)

	for i := range requests {
		wg.Go(func() {
			got := askCertificate(t, replicas[i%2], claim, bearer(claim), requests[i])

			mu.Lock()
			defer mu.Unlock()

			count[got.status]++
		})
	}

	wg.Wait()

	if count[http.StatusOK] != 1 || count[http.StatusConflict] != 3 {
		t.Errorf("responses %v", count)
	}
}

// Two machines with the same TPM are refused, because each could impersonate the other.
func TestSharedTPM(t *testing.T) {
	t.Parallel()

	w := newCertOffice(t)
	first, second := w.claim("linux-1", nil), w.claim("linux-2", nil)
	device := w.tpms.NewTPM(t)

	if got := askCertificate(t, w.operator, first, bearer(first), tpm.NewRequest(t, device)); got.status != http.StatusOK {
		t.Fatalf("%+v", got)
	}

	clone := tpm.NewRequest(t, w.tpms.CopyTPM(t, device))

	// The cache shows the first claim with a delay.
	probes := 0

	until(t, "the copied TPM is detected", func() bool {
		probes++
		third := w.claim(fmt.Sprintf("probe-%d", probes), nil)

		return askCertificate(t, w.operator, third, bearer(third), clone).status == http.StatusConflict
	})

	if got := askCertificate(t, w.operator, second, bearer(second), clone); got.status != http.StatusConflict ||
		!strings.Contains(got.refusal.Message, "remove the TPM from the template") {
		t.Errorf("%+v", got)
	}

	if read(t, w.namespace, second.Name, &v1alpha1.MachineClaim{}).Status.BootstrapInfo.Identity.Device != nil {
		t.Error("a refused key is recorded")
	}
}

// A machine that sends too many requests must wait. Guessed codes do not use up the limit of other machines.
func TestTooOften(t *testing.T) {
	t.Parallel()

	w := newCertOffice(t)
	claim, other := w.claim("linux-1", nil), w.claim("linux-2", nil)
	count := map[int]int{}

	for range 60 {
		count[askCertificate(t, w.operator, claim, "Bearer wrong", "{}").status]++
	}

	if count[http.StatusTooManyRequests] == 0 || count[http.StatusUnauthorized] == 0 {
		t.Errorf("responses to guesses: %v", count)
	}

	count = map[int]int{}
	for range 8 {
		count[askCertificate(t, w.operator, claim, bearer(claim), "{}").status]++
	}

	if count[http.StatusTooManyRequests] == 0 || count[http.StatusBadRequest] == 0 {
		t.Errorf("responses to requests: %v", count)
	}

	if got := askCertificate(t, w.operator, other, bearer(other), "{}"); got.status != http.StatusBadRequest {
		t.Errorf("another machine: %+v", got)
	}
}

func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"public":"AAAA","ek_certificate":"AAAA"}`))
	f.Add([]byte(`{"public":null}{}`))

	// Without claims and CA, every request is refused.
	operator := http.NewServeMux()
	operator.Handle(devid.Pattern, &devid.Handler{Key: key, Clock: clock.RealClock{}, Recorder: events.NewFakeRecorder(1)})

	f.Fuzz(func(t *testing.T, body []byte) {
		claim := &v1alpha1.MachineClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", UID: "c"}}
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, vmspec.DevIDPath(claim), bytes.NewReader(body))
		req.Header.Set("Authorization", bearer(claim))

		got := httptest.NewRecorder()
		operator.ServeHTTP(got, req)

		switch got.Code {
		case http.StatusBadRequest, http.StatusServiceUnavailable, http.StatusTooManyRequests:
		default:
			t.Fatalf("%d %s", got.Code, got.Body)
		}
	})
}
