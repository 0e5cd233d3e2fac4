// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudinit

import (
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The user's texts by their names in a HypervisorMachineTemplate.
const (
	fieldUserData    = "cloudInit.userData"
	fieldMetaData    = "cloudInit.metaData"
	fieldNetworkData = "cloudInit.networkData"
)

// maxOtherData bounds meta data and network configuration, in bytes.
const maxOtherData = 64 << 10

// cloudConfig is the first line of user data that is merged as structure.
const cloudConfig = "#cloud-config"

// Render makes one machine's boot data. Every error is the template's fault: it names
// the field, the line where there is one, and the fix; it holds no credential.
func Render(in Input) (Output, error) {
	out, err := render(&in)

	return out, redact(err, in.secrets())
}

func render(in *Input) (Output, error) {
	if in.InstanceID == "" || in.Hostname == "" {
		return Output{}, errors.New("render cloud-init data: instance id and host name must be given")
	}

	if in.MaxUserData == 0 {
		in.MaxUserData = DefaultMaxUserData
	}

	userData, err := renderUserData(in)
	if err != nil {
		return Output{}, err
	}

	metaData, err := renderMetaData(in)
	if err != nil {
		return Output{}, err
	}

	networkConfig, err := renderNetwork(in)
	if err != nil {
		return Output{}, err
	}

	return Output{UserData: userData, MetaData: metaData, NetworkConfig: networkConfig}, nil
}

// renderMetaData adds instance-id and local-hostname to the user's meta data.
func renderMetaData(in *Input) ([]byte, error) {
	text, err := expand(fieldMetaData, in.MetaData, &in.Vars, maxOtherData)
	if err != nil {
		return nil, err
	}

	root, err := parseYAML(fieldMetaData, text)
	if err != nil {
		return nil, err
	}

	ours, err := toNode(struct {
		InstanceID    string `yaml:"instance-id"`
		LocalHostname string `yaml:"local-hostname"`
	}{in.InstanceID, in.Hostname})
	if err != nil {
		return nil, err
	}

	if err := mergeInto(fieldMetaData, root, ours); err != nil {
		return nil, err
	}

	return encode(root)
}

// renderUserData joins the user's user data and the operator's.
func renderUserData(in *Input) ([]byte, error) {
	text, err := expand(fieldUserData, in.UserData, &in.Vars, in.MaxUserData)
	if err != nil {
		return nil, err
	}

	var out []byte

	switch kind, known := userDataKind(text); {
	case strings.TrimSpace(text) == "":
		out, err = mergeCloudConfig(in, "")
	case kind == typeCloudConfig:
		out, err = mergeCloudConfig(in, withoutHeader(text))
	case known:
		out, err = multipart(in, text, kind)
	default:
		err = fmt.Errorf("%s line 1: begins with no format that cloud-init knows: begin it with %s, #! and a shell, "+
			"#include, #cloud-boothook, or a MIME header", fieldUserData, cloudConfig)
	}

	if err != nil {
		return nil, err
	}

	if len(out) > in.MaxUserData {
		return nil, tooLarge(fieldUserData, fmt.Sprintf("%d bytes", len(out)), in.MaxUserData)
	}

	return out, nil
}

// withoutHeader blanks the #cloud-config line, so that line numbers stay.
func withoutHeader(text string) string {
	at := strings.Index(strings.ToLower(text), cloudConfig)
	lead := text[:at]

	rest := ""
	if nl := strings.IndexByte(text[at:], '\n'); nl >= 0 {
		rest = text[at+nl:]
	}

	return strings.TrimPrefix(lead, "\ufeff") + rest
}

// mergeCloudConfig adds the operator's cloud-config to the user's.
func mergeCloudConfig(in *Input, text string) ([]byte, error) {
	root, err := parseYAML(fieldUserData, text)
	if err != nil {
		return nil, err
	}

	taken, err := takeOver(in, root)
	if err != nil {
		return nil, err
	}

	ours, err := runtimeConfig(in, taken, mayStart(in, root))
	if err != nil {
		return nil, err
	}

	if err := mergeInto(fieldUserData, root, ours); err != nil {
		return nil, err
	}

	return withHeader(root)
}

func withHeader(root *yaml.Node) ([]byte, error) {
	body, err := encode(root)
	if err != nil {
		return nil, err
	}

	return append([]byte(cloudConfig+"\n"), body...), nil
}
