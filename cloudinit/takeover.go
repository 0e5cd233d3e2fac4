// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudinit

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// userOverrides says which of the operator's parts the template provides itself, like the sample in document
// 000.
type userOverrides struct {
	hasConfig, hasUnit, hasService, startsService bool
}

// findOverrides searches the user's write_files for the operator's paths. If the template writes
// guest.ConfigPath, the file must be a valid guest.Config for this runner. findOverrides adds the values that
// the file leaves out. With DeliveryDownload and DeliveryISO, the template may write the unit and the program of
// the bootstrap service only together with guest.ConfigPath.
func findOverrides(in *Input, root *yaml.Node) (userOverrides, error) {
	var overrides userOverrides

	entries := strictyaml.Lookup(root, "write_files")
	if entries == nil || entries.Kind != yaml.SequenceNode {
		return overrides, nil
	}

	found := map[string]*yaml.Node{}

	for i, e := range entries.Content {
		entry := e

		p := strictyaml.Lookup(entry, "path")
		if p == nil {
			continue
		}

		clean := path.Clean("/" + strings.TrimSpace(p.Value))
		position := fmt.Sprintf("%s.write_files[%d].path line %d", fieldUserData, i, p.Line)

		if clean == "/run/hyperfleet" || strings.HasPrefix(clean, "/run/hyperfleet/") {
			return overrides, fmt.Errorf("%s: %s belongs to the bootstrap service: write to another path", position, clean)
		}

		if clean != guest.ConfigPath && clean != UnitPath && clean != guest.ServicePath || in.Config == nil {
			continue
		}

		if found[clean] != nil {
			return overrides, fmt.Errorf("%s: %s is written twice: remove one entry", position, clean)
		}

		found[clean] = entry
	}

	if entry := found[guest.ConfigPath]; entry != nil {
		if err := completeConfig(in, entry); err != nil {
			return overrides, fmt.Errorf("%s.write_files line %d: %s: %w: fix it, or leave the file out so that the operator writes it",
				fieldUserData, entry.Line, guest.ConfigPath, err)
		}

		overrides.hasConfig = true
	}

	overrides.hasUnit, overrides.hasService = found[UnitPath] != nil, found[guest.ServicePath] != nil
	overrides.startsService = overrides.hasConfig && hasStartCommand(root)

	return overrides, rejectConflicts(in, overrides, found)
}

// rejectConflicts returns an error if the template writes a unit file or a program that the delivery also
// writes.
func rejectConflicts(in *Input, overrides userOverrides, found map[string]*yaml.Node) error {
	isDelivered := in.Delivery.Method == v1alpha1.DeliveryDownload || in.Delivery.Method == v1alpha1.DeliveryISO
	if overrides.hasConfig || !isDelivered {
		return nil
	}

	for _, p := range []string{UnitPath, guest.ServicePath} {
		if entry := found[p]; entry != nil {
			return fmt.Errorf("%s.write_files line %d: bootstrap.delivery %s also writes %s: "+
				"remove the entry, or set bootstrap.delivery to image", fieldUserData, entry.Line, in.Delivery.Method, p)
		}
	}

	return nil
}

// completeConfig validates the template's runner configuration, adds the values that it leaves out, and
// writes it back to the entry so that only root can read the file.
func completeConfig(in *Input, entry *yaml.Node) error {
	text, err := decodeEntryContent(entry)
	if err != nil {
		return err
	}

	merged, err := overlayConfig(in.Config, text)
	if err != nil {
		return err
	}

	strictyaml.SetKey(entry, "content", &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Style: yaml.LiteralStyle, Value: merged})
	strictyaml.SetKey(entry, "encoding", &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: "text/plain"})
	strictyaml.SetKey(entry, "permissions", &yaml.Node{
		Kind: yaml.ScalarNode, Tag: "!!str", Style: yaml.SingleQuotedStyle, Value: secretMode,
	})

	return nil
}

// decodeEntryContent returns the decoded content of an entry of write_files.
func decodeEntryContent(entry *yaml.Node) (string, error) {
	if a := strictyaml.Lookup(entry, "append"); a != nil && a.Value != "false" {
		return "", errors.New("append is not supported for this file")
	}

	content := strictyaml.Lookup(entry, "content")
	if content == nil || content.Kind != yaml.ScalarNode {
		return "", errors.New("the entry has no content")
	}

	encoding := ""
	if e := strictyaml.Lookup(entry, "encoding"); e != nil {
		encoding = strings.ToLower(e.Value)
	}

	switch {
	case content.Tag == "!!binary", encoding == "b64", encoding == "base64":
		raw, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(content.Value), ""))
		if err != nil {
			return "", errors.New("the content is not valid base64")
		}

		return string(raw), nil
	case encoding == "", encoding == "text/plain":
		return content.Value, nil
	default:
		return "", fmt.Errorf("encoding %s is not supported for this file", encoding)
	}
}

// overlayConfig parses the template's configuration strictly and returns the operator's configuration with
// the template's values. Empty values in the template override nothing.
func overlayConfig(operator *guest.Config, text string) (string, error) {
	if err := bounds.CheckJSON([]byte(text), maxOtherValues); err != nil {
		return "", fmt.Errorf("is not a runner configuration: %w", err)
	}

	dec := json.NewDecoder(strings.NewReader(removeEmptyValues(text)))
	dec.DisallowUnknownFields()

	var user guest.Config
	if err := dec.Decode(&user); err != nil {
		return "", fmt.Errorf("is not a runner configuration: %w", err)
	}

	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return "", errors.New("is not a runner configuration: text follows the end of the JSON object")
	}

	if user.RunnerName != operator.RunnerName {
		return "", fmt.Errorf("runner_name is %q, but this machine's is %q: write {{ .RunnerName }}",
			user.RunnerName, operator.RunnerName)
	}

	return overrideConfig(operator, &user)
}

// removeEmptyValues removes empty strings, lists and objects from a JSON object, because a template writes
// these for variables without a value. It returns invalid JSON unchanged.
func removeEmptyValues(text string) string {
	dec := json.NewDecoder(strings.NewReader(text))

	var v map[string]any
	if err := dec.Decode(&v); err != nil || dec.More() {
		return text
	}

	prune(v)

	out, err := json.Marshal(v)
	if err != nil {
		return text
	}

	return string(out)
}

func prune(v map[string]any) {
	for key, value := range v {
		switch value := value.(type) {
		case string:
			if value == "" {
				delete(v, key)
			}
		case nil:
			delete(v, key)
		case []any:
			if len(value) == 0 {
				delete(v, key)
			}
		case map[string]any:
			prune(value)

			if len(value) == 0 {
				delete(v, key)
			}
		}
	}
}

// overrideConfig returns base as JSON, overridden by the values of override.
func overrideConfig(base, override *guest.Config) (string, error) {
	var values [2]map[string]any

	for i, c := range []*guest.Config{base, override} {
		raw, err := json.Marshal(c)
		if err != nil {
			return "", fmt.Errorf("encode runner configuration: %w", err)
		}

		if err := json.Unmarshal(raw, &values[i]); err != nil {
			return "", fmt.Errorf("decode runner configuration: %w", err)
		}
	}

	prune(values[1])
	overrideValues(values[0], values[1])

	raw, err := json.Marshal(values[0])
	if err != nil {
		return "", fmt.Errorf("encode runner configuration: %w", err)
	}

	var c guest.Config // restores the order of the fields
	if err := json.Unmarshal(raw, &c); err != nil {
		return "", fmt.Errorf("decode runner configuration: %w", err)
	}

	out, err := json.MarshalIndent(&c, "", "  ")
	if err != nil {
		return "", fmt.Errorf("encode runner configuration: %w", err)
	}

	return string(out) + "\n", nil
}

func overrideValues(base, override map[string]any) {
	for key, value := range override {
		baseMap, isBaseMap := base[key].(map[string]any)
		overrideMap, isOverrideMap := value.(map[string]any)

		if isBaseMap && isOverrideMap {
			overrideValues(baseMap, overrideMap)

			continue
		}

		base[key] = value
	}
}

// hasStartCommand returns whether the user's runcmd starts the bootstrap service.
func hasStartCommand(root *yaml.Node) bool {
	commands := strictyaml.Lookup(root, "runcmd")
	if commands == nil || commands.Kind != yaml.SequenceNode {
		return false
	}

	for _, c := range commands.Content {
		words := strings.Fields(commandText(c))
		text := strings.Join(words, " ")
		hasUnit := strings.Contains(text, strings.TrimSuffix(guest.ServiceUnit, ".service"))
		isStart := strings.Contains(text, "systemctl") && (strings.Contains(text, "start ") || strings.Contains(text, "--now"))

		if hasUnit && isStart || len(words) > 0 && words[0] == guest.ServicePath {
			return true
		}
	}

	return false
}

// commandText returns a command as one text. It joins the words of a list with blanks.
func commandText(n *yaml.Node) string {
	if n.Kind != yaml.SequenceNode {
		return n.Value
	}

	words := make([]string, len(n.Content))
	for i, c := range n.Content {
		words[i] = c.Value
	}

	return strings.Join(words, " ")
}
