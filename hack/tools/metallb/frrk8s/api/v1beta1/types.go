// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1beta1 stands in for the package of that name, whose version is not one that
// every module proxy serves: the names that MetalLB compiles against. They are about BGP
// by FRR, which no test here uses: nothing of this is ever read from or written to an API
// server.
package v1beta1

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// AddToScheme adds nothing: the controller has no use for the kinds.
func AddToScheme(*runtime.Scheme) error { return nil }

type (
	// FRRConfiguration is what a speaker would write for FRR.
	FRRConfiguration struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`

		Spec FRRConfigurationSpec `json:"spec"`
	}

	FRRConfigurationSpec struct {
		BGP          BGPConfig
		NodeSelector metav1.LabelSelector
	}

	BGPConfig struct {
		Routers     []Router
		BFDProfiles []BFDProfile
	}

	Router struct {
		ASN       uint32
		ID, VRF   string
		Neighbors []Neighbor
		Prefixes  []string
	}

	DynamicASNMode string

	Neighbor struct {
		Address, Interface                   string
		ASN                                  uint32
		DynamicASN                           DynamicASNMode
		Port                                 *uint16
		HoldTime, KeepaliveTime, ConnectTime *metav1.Duration
		BFDProfile, Password                 string
		PasswordSecret                       SecretReference
		EnableGracefulRestart, EBGPMultiHop  bool
		DualStackAddressFamily, DisableMP    bool
		ToAdvertise                          Advertise
	}

	SecretReference struct{ Name, Namespace string }

	Advertise struct {
		Allowed                   AllowedOutPrefixes
		PrefixesWithLocalPref     []LocalPrefPrefixes
		PrefixesWithCommunity     []CommunityPrefixes
		PrefixesWithAsPathPrepend []AsPathPrependPrefixes
	}

	AllowedOutPrefixes struct{ Prefixes []string }

	LocalPrefPrefixes struct {
		LocalPref uint32
		Prefixes  []string
	}

	CommunityPrefixes struct {
		Community string
		Prefixes  []string
	}

	AsPathPrependPrefixes struct {
		AsPathPrepend uint8
		Prefixes      []string
	}

	BFDProfile struct {
		Name                                            string
		ReceiveInterval, TransmitInterval, EchoInterval *uint32
		DetectMultiplier, MinimumTTL                    *uint32
		EchoMode, PassiveMode                           *bool
	}
)

// DeepCopy copies by way of JSON.
func (c *FRRConfiguration) DeepCopy() *FRRConfiguration { return copied(c) }

// DeepCopyObject makes it an object of Kubernetes.
func (c *FRRConfiguration) DeepCopyObject() runtime.Object { return c.DeepCopy() }

// DeepCopyInto copies by way of JSON.
func (s *FRRConfigurationSpec) DeepCopyInto(out *FRRConfigurationSpec) { *out = *copied(s) }

func copied[T any](in *T) *T {
	raw, err := json.Marshal(in)
	if err != nil {
		panic(err) // texts and numbers can be written
	}

	out := new(T)
	if err := json.Unmarshal(raw, out); err != nil {
		panic(err) // it was just written
	}

	return out
}
