// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package providerpb_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/external/providerpb"
)

// fill sets each field of a value to a value of its own, so that a field that the protocol does not have is noticed.
func fill(v reflect.Value, n *int64) {
	*n++

	if v.Type() == reflect.TypeFor[time.Time]() {
		v.Set(reflect.ValueOf(time.Unix(*n, *n).UTC()))

		return
	}

	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprint("text ", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(*n)
	case reflect.Uint8:
		v.SetUint(uint64(*n % 256))
	case reflect.Struct:
		for _, field := range v.Fields() {
			fill(field, n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))

		for i := range v.Len() {
			fill(v.Index(i), n)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))

		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, n)
		fill(value, n)
		v.SetMapIndex(key, value)
	default:
		panic("fill " + v.Type().String())
	}
}

// checkRoundTrip encodes a value with all its fields, sends it through the wire format, and compares the result.
func checkRoundTrip[V any, M proto.Message](t *testing.T, encode func(V) M, decode func(M) V) {
	t.Helper()

	var (
		want V
		n    int64
	)

	fill(reflect.ValueOf(&want).Elem(), &n)

	text, err := proto.Marshal(encode(want))
	if err != nil {
		t.Fatal(err)
	}

	message := encode(want)
	proto.Reset(message)

	if err := proto.Unmarshal(text, message); err != nil {
		t.Fatal(err)
	}

	if diff := cmp.Diff(want, decode(message)); diff != "" {
		t.Errorf("%T changes on the wire (-want +got):\n%s", want, diff)
	}
}

func TestEveryFieldIsOnTheWire(t *testing.T) {
	t.Parallel()

	checkRoundTrip(t, providerpb.NewInfo, (*providerpb.Info).ToInfo)
	checkRoundTrip(t, providerpb.NewResolveResponse, (*providerpb.ResolveResponse).ToTemplates)
	checkRoundTrip(t, providerpb.NewTemplateRef, (*providerpb.TemplateRef).ToTemplateRef)
	checkRoundTrip(t, providerpb.NewShape, (*providerpb.Shape).ToShape)
	checkRoundTrip(t, providerpb.NewMachineSpec, (*providerpb.MachineSpec).ToMachineSpec)
	checkRoundTrip(t, providerpb.NewReservation, (*providerpb.Reservation).ToReservation)
	checkRoundTrip(t, providerpb.NewSeed, (*providerpb.Seed).ToSeed)
	checkRoundTrip(t, providerpb.NewMachineRef, (*providerpb.MachineRef).ToMachineRef)
	checkRoundTrip(t, providerpb.NewListResponse, (*providerpb.ListResponse).ToMachines)
	checkRoundTrip(t, providerpb.NewCapacityResponse, (*providerpb.CapacityResponse).ToCapacity)
	checkRoundTrip(t, providerpb.NewExecuteResponse, (*providerpb.ExecuteResponse).ToExecResult)
}

func TestMissingMessagesAreZero(t *testing.T) {
	t.Parallel()

	if diff := cmp.Diff(hypervisor.MachineSpec{}, (*providerpb.MachineSpec)(nil).ToMachineSpec()); diff != "" {
		t.Error(diff)
	}

	if got := providerpb.NewMachine(hypervisor.Machine{}).ToMachine(); !got.CreatedAt.IsZero() {
		t.Errorf("want no time, got %s", got.CreatedAt)
	}
}

// No credential of the cluster and no setting of another provider reaches the program.
func TestConnectRequestHasNoCredentials(t *testing.T) {
	t.Parallel()

	config := hypervisor.Config{
		Name: "c", Nodes: []string{"a"}, DefaultStorage: "s", ISOStorage: "i", DefaultNetwork: "n", ResourcePool: "p",
		IDMin: 1, IDMax: 2, ClonesPerStorage: 3, CallsPerNode: 4, Tags: map[string]string{"a": "b"},
		Settings: map[string]string{"c": "d"},
	}
	want := config
	config.Credentials = hypervisor.Credentials{TokenSecret: "secret"}
	config.SSHPrivateKey, config.Kubeconfig = []byte("secret"), []byte("secret")

	if diff := cmp.Diff(want, providerpb.NewConnectRequest(&config, "operator").ToConfig()); diff != "" {
		t.Error(diff)
	}
}

func TestErrorsHaveTheirKind(t *testing.T) {
	t.Parallel()

	for _, kind := range []hypervisor.Kind{
		hypervisor.NotFound, hypervisor.NoCapacity, hypervisor.Busy, hypervisor.Rejected, hypervisor.UnknownOutcome,
		hypervisor.IDTaken, hypervisor.NotOwned, hypervisor.Unavailable,
	} {
		err := fmt.Errorf("outer: %w", &hypervisor.Error{
			Kind: kind, Reason: "Because", Message: "fix it", RetryAfter: time.Minute, Err: errors.New("cause"),
		})
		detail := providerpb.FindError(providerpb.NewStatus(err))

		if !providerpb.IsKind(string(kind)) || detail.GetKind() != string(kind) || detail.GetReason() != "Because" ||
			detail.GetMessage() != "outer: fix it: cause" || detail.GetRetryAfter().AsDuration() != time.Minute {
			t.Errorf("%s: got %v", kind, detail)
		}

		if status.Code(providerpb.NewStatus(err)) == codes.OK {
			t.Errorf("%s is no error", kind)
		}
	}

	// A text of another encoding cannot be on the wire, and a long one is no header.
	err := hypervisor.Errorf(hypervisor.NotFound, "Gone", "\xff%s", strings.Repeat("x", 100000))
	if detail := providerpb.FindError(providerpb.NewStatus(err)); detail.GetKind() != "NotFound" || len(detail.GetMessage()) > 5000 {
		t.Errorf("got kind %q and %d bytes", detail.GetKind(), len(detail.GetMessage()))
	}

	if providerpb.NewStatus(nil) != nil || providerpb.FindError(errors.New("plain")) != nil || providerpb.IsKind("") {
		t.Error("want no error without an error")
	}
}
