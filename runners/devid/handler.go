// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package devid

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/identity/devid"
	"github.com/hyperfleet/hyperfleet/runners/guestapi"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
)

const (
	// Pattern is the route that Handler serves.
	Pattern = "POST /machines/{namespace}/{name}/{uid}/devid"

	// maxBody bounds a request: a public area and a certificate, in base64.
	maxBody = 32 << 10
)

// Reasons of the events on a claim.
const (
	ReasonCertified = "DeviceIdentityCertified"
	ReasonRefused   = "DeviceIdentityRefused"
)

// Handler certifies device identities. It needs no leader: any replica may answer.
//
// It takes a guest.DevIDRequest, and answers 200 with a guest.DevIDCertificate, else with a
// guest.Refusal: 400 for a key that cannot be certified, 401 for a wrong code, 403 for a
// machine that does not attest by a TPM, 409 where another key was certified for the machine
// or its TPM is another machine's, 410 where its claim is over, and 429 and 503 with
// Retry-After where another try may help.
type Handler struct {
	// Client writes the claims' status, and finds claims by IndexEK.
	Client client.Client
	// Live reads claims from the API server itself.
	Live     client.Reader
	Recorder events.EventRecorder
	// Key is what the machines' codes are made of.
	Key []byte
	// Authority that certifies; empty where the operator has none.
	Authority config.DevID
	Metrics   *Metrics
	Clock     clock.PassiveClock

	limits guestapi.Limits
}

//+kubebuilder:rbac:groups=hyperfleet.io,resources=machineclaims,verbs=get;list;watch
//+kubebuilder:rbac:groups=hyperfleet.io,resources=machineclaims/status,verbs=patch

// ServeHTTP answers one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), guestapi.Timeout)
	defer cancel()

	who := guestapi.CallerOf(r)

	refused := h.prove(ctx, r, who)
	if refused == nil {
		var chain string

		if chain, refused = h.certify(ctx, w, r, who); refused == nil {
			guestapi.Answer(w, http.StatusOK, guest.DevIDCertificate{Chain: chain})

			return
		}
	}

	h.Metrics.request(refused.Outcome)
	refused.Refuse(ctx, w, r, h.Recorder, guestapi.Words{
		Reason: ReasonRefused, Action: "Certify", Log: "no device identity was certified",
	})
}

// prove decides whether the caller has the claim's code.
func (h *Handler) prove(ctx context.Context, r *http.Request, who guestapi.Caller) *guestapi.Refusal {
	want := vmspec.DevIDCode(h.Key, who.Namespace, who.Name, who.UID)
	if len(h.Key) > 0 && guestapi.Same(guestapi.Bearer(r), want) {
		return h.limits.Genuine(who.UID, h.Clock.Now())
	}

	return h.limits.Wrong(ctx, h.Client, who, h.Clock.Now(), guestapi.Never(http.StatusUnauthorized, guestapi.OutcomeWrongCode,
		guest.ReasonAttestationRefused, "the code for the device identity is not this machine's"))
}

// certify makes the certificate of the key that the caller shows.
func (h *Handler) certify(
	ctx context.Context, w http.ResponseWriter, r *http.Request, who guestapi.Caller,
) (string, *guestapi.Refusal) {
	asked, refused := read(w, r)
	if refused != nil {
		return "", refused
	}

	if _, err := devid.ReadPublic(asked.Public); err != nil {
		return "", invalid(err.Error())
	}

	authority, refused := h.authority(ctx)
	if refused != nil {
		return "", refused
	}

	claim, first, refused := h.record(ctx, who, asked)
	if refused != nil {
		return "", refused
	}

	issued, err := authority.Issue(devid.Request{
		Machine: vmspec.IdentityOf(claim), Public: asked.Public,
		At: claim.Status.BootstrapInfo.Identity.Device.RequestedAt.Time, Lifetime: lifetime(claim),
	})
	if err != nil {
		log.FromContext(ctx).Error(err, "certificate was not made", "namespace", who.Namespace, "claim", who.Name)

		return "", guestapi.Later("the certificate cannot be made at present: try again")
	}

	h.told(ctx, claim, issued, first)

	return chainOf(issued), nil
}

// told tells people of a certificate that was made.
func (h *Handler) told(ctx context.Context, claim *v1alpha1.MachineClaim, issued devid.Certificate, first bool) {
	log.FromContext(ctx).Info("device identity was certified", "namespace", claim.Namespace, "claim", claim.Name,
		"serial", issued.Serial.Text(16), "notAfter", issued.NotAfter, "first", first)

	if !first {
		h.Metrics.request(outcomeAgain)

		return
	}

	h.Metrics.request(guestapi.OutcomeGiven)
	h.Recorder.Eventf(claim, nil, corev1.EventTypeNormal, ReasonCertified, "Certify",
		"the device identity of the machine was certified: serial %s, until %s",
		issued.Serial.Text(16), issued.NotAfter.UTC().Format("2006-01-02 15:04:05 MST"))
}

// authority reads the authority anew, so that a renewed one is taken up.
func (h *Handler) authority(ctx context.Context) (*devid.Authority, *guestapi.Refusal) {
	if h.Authority.CertFile == "" {
		return nil, guestapi.Later("this operator has no authority over device identities (identity.devID): try again")
	}

	authority, err := devid.Load(h.Authority, h.Clock)
	if err != nil {
		log.FromContext(ctx).Error(err, "the authority over device identities is of no use")

		return nil, guestapi.Later("the operator's authority over device identities is of no use at present: try again")
	}

	return authority, nil
}

func invalid(message string) *guestapi.Refusal {
	return guestapi.Never(http.StatusBadRequest, outcomeInvalid, guest.ReasonAttestationRefused, message)
}

// read reads a request strictly. What a machine says in it is not told to anybody.
func read(w http.ResponseWriter, r *http.Request) (guest.DevIDRequest, *guestapi.Refusal) {
	var asked guest.DevIDRequest

	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	dec.DisallowUnknownFields()

	if err := dec.Decode(&asked); err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return asked, invalid("the request is too large")
		}

		return asked, invalid("the request is no DevIDRequest in JSON")
	}

	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return asked, invalid("text follows the end of the request")
	}

	if len(asked.Public) == 0 {
		return asked, invalid("the request holds no public area of a key")
	}

	return asked, nil
}

// chainOf is a certificate's chain in PEM.
func chainOf(issued devid.Certificate) string {
	var out strings.Builder
	for _, der := range issued.Chain {
		out.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	}

	return out.String()
}
