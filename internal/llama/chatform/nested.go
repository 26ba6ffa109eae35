package chatform

import "strings"

// nestedMark is before each tag.
const nestedMark = "]<]minimax[>["

// convertNested returns the JSON of an argument whose members and elements are in tags:
//
//	<key>value</key> <item>value</item>
//
// each with nestedMark before each tag.
func convertNested(raw string, s schema) string { return nestedValue(raw, s, 0) }

func nestedValue(raw string, s schema, depth int) string {
	types := s.types()
	if types&typeString != 0 && types&^(typeString|typeNull) == 0 || types&typeString != 0 && strings.Contains(raw, nestedMark) {
		return convert(raw, types)
	}
	text := strings.Trim(raw, white)
	if text == "" && types != 0 && types&typeString == 0 {
		switch {
		case types&typeArray != 0:
			return "[]"
		case types&typeObject != 0:
			return "{}"
		}
		return "null"
	}
	if !strings.HasPrefix(text, nestedMark+"<") || depth == maxDepth {
		return convert(raw, types)
	}
	array := types&typeArray != 0 && (types&typeObject == 0 || strings.HasPrefix(text, nestedMark+"<item>")) ||
		types == 0 && strings.HasPrefix(text, nestedMark+"<item>")
	var list []string
	for text != "" {
		name, rest, ok := strings.Cut(strings.TrimPrefix(text, nestedMark+"<"), ">")
		if !ok || len(rest) == len(text) {
			return quote(raw)
		}
		value, after, ok := cutNested(rest, name)
		if !ok {
			return quote(raw)
		}
		if array {
			list = append(list, nestedValue(value, s.items(), depth+1))
		} else {
			list = append(list, quote(name)+":"+nestedValue(value, s.property(name), depth+1))
		}
		text = strings.TrimLeft(after, white)
		if text != "" && !strings.HasPrefix(text, nestedMark+"<") {
			return quote(raw)
		}
	}
	if array {
		return "[" + strings.Join(list, ",") + "]"
	}
	return "{" + strings.Join(list, ",") + "}"
}

// cutNested splits s around the end tag of a name, with tags of that name within.
func cutNested(s, name string) (value, after string, ok bool) {
	begin, end := nestedMark+"<"+name+">", nestedMark+"</"+name+">"
	depth := 0
	for i := 0; i < len(s); i++ {
		switch {
		case strings.HasPrefix(s[i:], begin):
			depth++
		case strings.HasPrefix(s[i:], end):
			if depth == 0 {
				return s[:i], s[i+len(end):], true
			}
			depth--
		}
	}
	return "", "", false
}
